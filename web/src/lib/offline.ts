// Registers the service worker, after the first visit has loaded everything that it needs.
const DELAY_MS = 3_000;

export function registerServiceWorker(): void {
  if (!("serviceWorker" in navigator) || !isSecureContext) return;
  setTimeout(() => void navigator.serviceWorker.register("service-worker.js").catch(() => undefined), DELAY_MS); // the page works without it
}
