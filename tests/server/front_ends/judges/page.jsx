// All front ends of the documentation in one page: ?kind=count&…  Each is in a section with the name of its thread.
import { createRoot } from "react-dom/client";

const load = {
  "use-chat": () => import("./use-chat.jsx"),
  copilotkit: () => import("./copilotkit.jsx"),
  "assistant-ui": () => import("./assistant-ui.jsx"),
  "assistant-ui-ag-ui": () => import("./assistant-ui-ag-ui.jsx"),
};

async function mount() {
  const counts = [...new URLSearchParams(location.search)];
  const names = counts.flatMap(([kind, count]) => Array.from({ length: Number(count) }, (_, at) => [kind, `${kind}-${at + 1}`]));
  for (const [kind, id] of names) await mountOne(kind, id);
  document.body.dataset.ready = "yes";
}

async function mountOne(kind, id) {
  const section = document.createElement("section");
  section.id = id;
  document.body.append(section);
  const { Chat } = await load[kind]();
  const { loadMessages } = await load["use-chat"]();
  const messages = kind === "use-chat" || kind === "assistant-ui" ? await loadMessages(id) : undefined;
  createRoot(section).render(<Chat id={id} messages={messages} />);
}

mount();
