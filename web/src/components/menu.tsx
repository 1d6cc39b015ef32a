// A button that opens a menu of actions.
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { Icon, type IconName } from "./icons.tsx";

export interface MenuAction {
  label: string;
  icon: IconName;
  run: () => void;
}

export function Menu({ label, actions }: { label: string; actions: MenuAction[] }) {
  const [isOpen, setOpen] = useState(false);
  const place = useRef<HTMLDivElement>(null);
  const list = useId();
  useEffect(() => {
    if (!isOpen) return;
    place.current?.querySelector<HTMLElement>("[role=menuitem]")?.focus();
    const closeMenu = (event: Event) => {
      if (!place.current?.contains(event.target as Node)) setOpen(false);
    };
    addEventListener("pointerdown", closeMenu);
    addEventListener("focusin", closeMenu);
    return () => {
      removeEventListener("pointerdown", closeMenu);
      removeEventListener("focusin", closeMenu);
    };
  }, [isOpen]);
  const onKeyDown = (event: KeyboardEvent) => {
    if (!isOpen) return;
    if (event.key === "Escape") {
      event.preventDefault();
      setOpen(false);
      place.current?.querySelector("button")?.focus();
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const items = [...(place.current?.querySelectorAll<HTMLElement>("[role=menuitem]") ?? [])];
    const at = items.indexOf(document.activeElement as HTMLElement);
    items[(at + step + items.length) % items.length]?.focus();
  };
  return (
    <div class={`menu ${isOpen ? "open" : ""}`} ref={place} onKeyDown={onKeyDown}>
      <button type="button" class="icon-button" aria-label={label} title={label} aria-haspopup="menu" aria-expanded={isOpen} aria-controls={isOpen ? list : undefined} onClick={() => setOpen(!isOpen)}>
        <Icon name="more" />
      </button>
      {isOpen && (
        <div role="menu" id={list} aria-label={label}>
          {actions.map((action) => (
            <button key={action.label} type="button" role="menuitem" onClick={() => (setOpen(false), action.run())}>
              <Icon name={action.icon} size={16} />
              {action.label}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}
