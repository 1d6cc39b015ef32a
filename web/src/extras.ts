// Everything that the first visit does not need, in one file that is loaded when the first of them is opened.
export { ChooseModels } from "./compare/choose-models.tsx";
export { ComparePage } from "./compare/compare.tsx";
export { Costs } from "./costs.tsx";
export { Mail } from "./mail/mail.tsx";
export { ExportDialog, ShareDialog, TagDialog } from "./organise/dialogs.tsx";
export { Providers } from "./providers/providers.tsx";
export { SettingsDialog } from "./chat/settings-dialog.tsx";
export { Tour } from "./tour/tour.tsx";
export { WhyPage } from "./why/why.tsx";
