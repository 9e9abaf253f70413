// The keys, all in one place.
import { PLACES } from "../keys";
import { Key } from "./basics";
import { Dialog } from "./dialog";

export function KeyHelp({ close }: { close: () => void }) {
  const others: [string[], string][] = [
    [["/"], "to the search of a list"],
    [["j"], "to the list"],
    [["↑", "↓", "Page ↑", "Page ↓", "Home", "End"], "in a list"],
    [["Enter"], "opens the row"],
    [["Esc"], "leaves a field, closes a question"],
    [["?"], "these keys"],
  ];
  return (
    <Dialog title="Keys" close={close}>
      <div class="keys">
        <ul>
          {PLACES.map((place) => (
            <li key={place.key}>
              <Key>g</Key> <Key>{place.key}</Key> {place.name}
            </li>
          ))}
        </ul>
        <ul>
          {others.map(([keys, words]) => (
            <li key={words}>
              {keys.map((key) => (
                <Key key={key}>{key}</Key>
              ))}{" "}
              {words}
            </li>
          ))}
        </ul>
      </div>
    </Dialog>
  );
}
