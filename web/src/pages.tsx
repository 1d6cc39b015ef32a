// Pages by the first part of the URL hash.
import type { ComponentChild } from "preact";
import { Chat } from "./chat/chat.tsx";
import { Costs } from "./costs.tsx";
import type { IconName } from "./components/icons.tsx";
import { Mail } from "./mail/mail.tsx";

export interface Page {
  name: string; // "": the start page
  label: string;
  icon: IconName;
  show: () => ComponentChild;
}

export const PAGES: Page[] = [
  { name: "", label: "Chat", icon: "chat", show: () => <Chat /> },
  { name: "mail", label: "Mail", icon: "mail", show: () => <Mail /> },
  { name: "costs", label: "Costs", icon: "coins", show: () => <Costs /> },
];
