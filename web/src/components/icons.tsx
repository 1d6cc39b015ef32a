// Icons as SVG paths.
const PATHS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14Zm5-2 4.500 4.500",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M6.500 6.500h11v11h-11z",
  clip: "m20 11-8.200 8.200a5 5 0 0 1-7-7L13 4a3.300 3.300 0 0 1 4.700 4.700l-8.200 8.100a1.700 1.700 0 0 1-2.400-2.300L14.500 7",
  copy: "M9 9h10v11H9zM5 15V4h10",
  fork: "M7 5v14M7 12c6 0 10-1 10-7M4.500 5h5M14.500 5h5M4.500 19h5",
  code: "m8 8-4 4 4 4M16 8l4 4-4 4",
  edit: "M5 19h3.500L19 8.500 15.500 5 5 15.500z",
  retry: "M4 11a8 8 0 0 1 14-4.500L20 9M20 4v5h-5M20 13a8 8 0 0 1-14 4.500L4 15M4 20v-5h5",
  close: "m6 6 12 12M18 6 6 18",
  chevron: "m9 6 6 6-6 6",
  left: "m15 6-6 6 6 6",
  right: "m9 6 6 6-6 6",
  swap: "M4 8h13M14 5l3 3-3 3M20 16H7M10 13l-3 3 3 3",
  down: "m6 9 6 6 6-6",
  tool: "M14.500 6.500a4 4 0 0 0-5.300 5L4 16.700 7.300 20l5.200-5.200a4 4 0 0 0 5-5.300l-2.600 2.600-2.500-.5-.5-2.500z",
  check: "m5 13 4.500 4.500L19 7.500",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8Zm0-13v2m0 14v2m9-9h-2M5 12H3m15.400-6.400L17 7M7 17l-1.400 1.400m12.800 0L17 17M7 7 5.600 5.600",
  moon: "M20 14.500A8.500 8.500 0 0 1 9.500 4a8.500 8.500 0 1 0 10.500 10.500Z",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  help: "M9 9a3 3 0 1 1 4.500 2.600c-1 .6-1.500 1.200-1.500 2.400M12 17.500h.01",
  chat: "M5 5h14v10H10l-4 4v-4H5z",
  mail: "M4 6h16v12H4zM4.500 7l7.500 6 7.500-6",
  coins: "M4 19V9M9.300 19V5M14.700 19v-7M20 19v-4",
  file: "M7 3h7l4 4v14H7zM14 3v4h4",
  why: "M4 6h7M7 10h9M12 14h8M4 18h5",
  columns: "M4 5h16v14H4zM12 5v14",
  pin: "M9 4h6l-1 6 3 3H7l3-3zM12 13v7",
  tag: "M4 5h7l9 9-6 6-9-9zM8 9h.01",
  share: "M12 15V4M8 8l4-4 4 4M5 12v8h14v-8",
  camera: "M4 8h4l2-3h4l2 3h4v11H4zM12 16.500a3 3 0 1 0 0-6 3 3 0 0 0 0 6Z",
  warn: "M12 4 3 19h18zM12 10v4M12 16.500h.01",
  key: "M14.500 4a5.500 5.500 0 1 1-4.600 8.500L4 18.400V21h3v-2h2v-2h2l1.600-1.600M15.500 8.500h.01",
  sliders: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.500v5M9 14.500v5",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 18 }: { name: IconName; size?: number }) {
  return (
    <svg class="icon" width={size} height={size} viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

interface ButtonProps {
  icon: IconName;
  label: string;
  onClick: () => void;
  class?: string;
  disabled?: boolean;
}

export function IconButton({ icon, label, onClick, class: look = "", disabled = false }: ButtonProps) {
  return (
    <button type="button" class={`icon-button ${look}`} aria-label={label} title={label} onClick={onClick} disabled={disabled}>
      <Icon name={icon} />
    </button>
  );
}
