// Service worker: the page opens without a connection to its server.
//
// Only the page itself and its files are cached. Invariant: no response of the API, no attachment and no shared page is
// ever cached, so nothing of a conversation stays in the browser.
const CACHE = "dragoman-{version}";
const SHELL = ["./", ...FILES];

addEventListener("install", (event) => {
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(SHELL)).then(() => skipWaiting()));
});

addEventListener("activate", (event) => {
  const removeOld = async () => {
    for (const name of await caches.keys()) if (name.startsWith("dragoman-") && name !== CACHE) await caches.delete(name);
    await clients.claim();
  };
  event.waitUntil(removeOld());
});

addEventListener("fetch", (event) => {
  const { request } = event;
  const url = new URL(request.url);
  const scope = new URL(registration.scope);
  if (request.method !== "GET" || url.origin !== scope.origin) return;
  if (url.href.startsWith(`${scope.href}static/`)) event.respondWith(fromCache(request));
  else if (request.mode === "navigate" && url.pathname === scope.pathname && !url.search) event.respondWith(fromServer(request));
});

// Files have a hash of their content in their names.
async function fromCache(request) {
  const stored = await caches.match(request);
  if (stored) return stored;
  const answer = await fetch(request);
  if (answer.ok) await (await caches.open(CACHE)).put(request, answer.clone());
  return answer;
}

// The newest page, or the stored one without a connection.
async function fromServer(request) {
  try {
    return await fetch(request);
  } catch (error) {
    const stored = await caches.match("./");
    if (stored) return stored;
    throw error;
  }
}
