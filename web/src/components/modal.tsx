// A modal dialog. The browser keeps the focus inside; closing restores it.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { IconButton } from "./icons.tsx";

interface ModalProps {
  title: string;
  onClose?: () => void; // undefined: the dialog cannot be dismissed
  children: ComponentChildren;
  class?: string;
}

export function Modal({ title, onClose, children, class: look = "" }: ModalProps) {
  const element = useRef<HTMLDialogElement>(null);
  const heading = useId();
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    element.current?.showModal();
    const first = element.current?.querySelector<HTMLElement>("[data-focus]") ?? element.current?.querySelector("h2");
    first?.focus();
    return () => before?.focus?.();
  }, []);
  const onCancel = (event: Event) => {
    event.preventDefault();
    onClose?.();
  };
  const onPress = (event: MouseEvent) => {
    if (event.target === element.current) onClose?.();
  };
  return (
    <dialog ref={element} class={look} aria-labelledby={heading} onCancel={onCancel} onMouseDown={onPress}>
      <div class="dialog">
        <header class="row between">
          <h2 id={heading} tabindex={-1}>
            {title}
          </h2>
          {onClose && <IconButton icon="close" label="Close" onClick={onClose} />}
        </header>
        {children}
      </div>
    </dialog>
  );
}
