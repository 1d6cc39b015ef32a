// Conversion between the URL hash and a route.
export interface Route {
  page: string; // "": the chat
  id: string | null;
  at: string | null; // id of the message to scroll to
}

export function routeFrom(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [page = "", ...rest] = path.split("/");
  const at = new URLSearchParams(query).get("at");
  const id = rest.length ? decodePart(rest.join("/")) : null;
  return { page: page === "thread" ? "" : page, id: id || null, at };
}

export function hashOf(route: Partial<Route>): string {
  const page = route.page || (route.id ? "thread" : "");
  const path = [page, route.id].filter(Boolean).map((part) => encodeURIComponent(part as string)).join("/");
  return `#/${path}${route.at ? `?at=${encodeURIComponent(route.at)}` : ""}`;
}

function decodePart(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
