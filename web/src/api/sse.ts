// Parser for server-sent events: feed(chunk) returns the complete events. An incomplete event is never returned.

export interface Message {
  id: string | null;
  data: string;
}

export class SseParser {
  #rest = "";
  #id: string | null = null;
  #data: string[] = [];

  feed(chunk: string): Message[] {
    const lines = (this.#rest + chunk).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop() ?? "";
    return lines.flatMap((line) => this.#line(line) ?? []);
  }

  #line(line: string): Message | null {
    if (line === "") {
      const message = this.#data.length ? { id: this.#id, data: this.#data.join("\n") } : null;
      this.#data = [];
      return message;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return null;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "id") this.#id = value;
    if (field === "data") this.#data.push(value);
    return null;
  }
}
