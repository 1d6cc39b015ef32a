// The pages that there are, by the first word of their address. A new one is a row here, and a component of its own.
import type { ComponentChild } from "preact";
import { Chat } from "./chat/chat.tsx";
import { Costs } from "./costs.tsx";
import type { IconName } from "./components/icons.tsx";
import { Mail } from "./mail/mail.tsx";

export interface Page {
  name: string; // "" is where everybody begins
  label: string;
  icon: IconName;
  show: () => ComponentChild;
}

export const PAGES: Page[] = [
  { name: "", label: "Chat", icon: "chat", show: () => <Chat /> },
  { name: "mail", label: "Mail", icon: "mail", show: () => <Mail /> },
  { name: "costs", label: "Costs", icon: "coins", show: () => <Costs /> },
];
