// Conversion between the URL hash behind #/mail and a mail page.
export type Place =
  | { kind: "boxes" }
  | { kind: "box"; recipient: string }
  | { kind: "task"; task: string }
  | { kind: "letter"; recipient: string; letter: string }
  | { kind: "dead" }
  | { kind: "trends"; by: By; name: string | null }; // null: all together

export type By = "agent" | "model";

export function placeFrom(address: string | null): Place {
  const [kind = "", first = "", ...rest] = (address ?? "").split("/");
  const second = rest.join("/");
  if (kind === "box" && first) return { kind, recipient: first };
  if (kind === "task" && first) return { kind, task: first };
  if (kind === "letter" && first && second) return { kind, recipient: first, letter: second };
  if (kind === "dead") return { kind };
  if (kind === "trends") return { kind, by: first === "model" ? "model" : "agent", name: second || null };
  return { kind: "boxes" };
}

export function linkTo(place: Place): string {
  return ["#/mail", ...partsOf(place).map(encodeURIComponent)].join("/");
}

function partsOf(place: Place): string[] {
  switch (place.kind) {
    case "boxes":
      return [];
    case "box":
      return ["box", place.recipient];
    case "task":
      return ["task", place.task];
    case "letter":
      return ["letter", place.recipient, place.letter];
    case "dead":
      return ["dead"];
    case "trends":
      return ["trends", ...(place.by === "agent" && !place.name ? [] : [place.by]), ...(place.name ? [place.name] : [])];
  }
}
