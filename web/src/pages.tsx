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
  isHidden?: true; // not in the navigation
  show: () => ComponentChild;
}

const Costs = lazy(async () => (await import("./extras.ts")).Costs);
const Mail = lazy(async () => (await import("./extras.ts")).Mail);
const Compare = lazy(async () => (await import("./extras.ts")).ComparePage);
const Why = lazy(async () => (await import("./extras.ts")).WhyPage);
const Providers = lazy(async () => (await import("./extras.ts")).Providers);

export const PAGES: Page[] = [
  { name: "", label: "Chat", icon: "chat", show: () => <Chat /> },
  { name: "mail", label: "Mail", icon: "mail", show: () => <Mail /> },
  { name: "costs", label: "Costs", icon: "coins", show: () => <Costs /> },
  { name: "providers", label: "Providers", icon: "key", isForAdmins: true, show: () => <Providers /> },
  { name: "compare", label: "Compare models", icon: "columns", isHidden: true, show: () => <Compare /> },
  { name: "why", label: "Why this answer?", icon: "help", isHidden: true, show: () => <Why /> },
];
