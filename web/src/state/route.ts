// The address of the page, behind its #, as a value and back.
export interface Route {
  page: string; // "" is the conversation
  id: string | null;
  at: string | null; // a message to show
}

export function routeFrom(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [page = "", ...rest] = path.split("/");
  const at = new URLSearchParams(query).get("at");
  const id = rest.length ? unescaped(rest.join("/")) : null;
  return { page: page === "thread" ? "" : page, id: id || null, at };
}

export function hashOf(route: Partial<Route>): string {
  const page = route.page || (route.id ? "thread" : "");
  const path = [page, route.id].filter(Boolean).map((part) => encodeURIComponent(part as string)).join("/");
  return `#/${path}${route.at ? `?at=${encodeURIComponent(route.at)}` : ""}`;
}

function unescaped(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
