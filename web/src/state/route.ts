// Conversion between the URL hash and a route.
export interface Route {
  page: string; // "": the chat
  id: string | null;
  at: string | null; // id of the message to scroll to
  seq: number | null; // its position, if known
}

export function routeFrom(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [page = "", ...rest] = path.split("/");
  const parameters = new URLSearchParams(query);
  const seq = Number(parameters.get("seq"));
  const id = rest.length ? decodePart(rest.join("/")) : null;
  return { page: page === "thread" ? "" : page, id: id || null, at: parameters.get("at"), seq: Number.isInteger(seq) && seq > 0 ? seq : null };
}

export function hashOf(route: Partial<Route>): string {
  const page = route.page || (route.id ? "thread" : "");
  const path = [page, route.id].filter(Boolean).map((part) => encodeURIComponent(part as string)).join("/");
  const seq = route.seq ? `&seq=${route.seq}` : "";
  return `#/${path}${route.at ? `?at=${encodeURIComponent(route.at)}${seq}` : ""}`;
}

function decodePart(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
