// What was done, said once at the edge of the page.
import { store } from "../store/store";
import { useStore } from "../store/use";
import { Button } from "./basics";

export function Notices() {
  const notices = useStore(() => store.notices);
  return (
    <div class="notices" role="status" aria-live="polite">
      {notices.map((notice) => (
        <p key={notice.id} class={`notice ${notice.tone}`}>
          {notice.href ? <a href={notice.href}>{notice.words}</a> : <span>{notice.words}</span>}
          <Button look="quiet" small aria-label="Dismiss" onClick={() => store.dismiss(notice.id)}>
            ✕
          </Button>
        </p>
      ))}
    </div>
  );
}
