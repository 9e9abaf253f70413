// Reads server-sent events from their text. See https://html.spec.whatwg.org/multipage/server-sent-events.html

export interface Sent {
  event: string;
  data: string;
  id?: string | undefined;
}

/** Takes text as it comes, in any pieces, and returns the events that are whole. */
export class SseReader {
  private rest = "";
  private event = "";
  private data: string[] = [];
  private id: string | undefined;

  take(text: string): Sent[] {
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop() ?? "";
    const sent: Sent[] = [];
    for (const whole of lines) {
      const line = whole.endsWith("\r") ? whole.slice(0, -1) : whole;
      if (line === "") {
        if (this.data.length > 0) sent.push(this.finished());
        this.event = "";
        this.data = [];
      } else this.field(line);
    }
    return sent;
  }

  private finished(): Sent {
    return { event: this.event || "message", data: this.data.join("\n"), id: this.id };
  }

  private field(line: string): void {
    const colon = line.indexOf(":");
    // A line that begins with a colon is a comment, by which a quiet stream says that it is there.
    if (colon === 0) return;
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") this.event = value;
    else if (name === "data") this.data.push(value);
    else if (name === "id" && !value.includes("\0")) this.id = value;
  }
}
