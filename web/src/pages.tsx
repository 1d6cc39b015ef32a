// Pages by the first part of the URL hash.
import type { ComponentChild } from "preact";
import { Chat } from "./chat/chat.tsx";
import type { IconName } from "./components/icons.tsx";
import { lazy } from "./components/lazy.tsx";

export interface Page {
  name: string; // "": the start page
  label: string;
  icon: IconName;
  isForAdmins?: boolean; // linked as an icon
  show: () => ComponentChild;
}

const Costs = lazy(async () => (await import("./costs.tsx")).Costs);
const Providers = lazy(async () => (await import("./providers/providers.tsx")).Providers);
const Mail = lazy(async () => (await import("./mail/mail.tsx")).Mail);

export const PAGES: Page[] = [
  { name: "", label: "Chat", icon: "chat", show: () => <Chat /> },
  { name: "mail", label: "Mail", icon: "mail", show: () => <Mail /> },
  { name: "costs", label: "Costs", icon: "coins", show: () => <Costs /> },
  { name: "providers", label: "Providers", icon: "key", isForAdmins: true, show: () => <Providers /> },
];
