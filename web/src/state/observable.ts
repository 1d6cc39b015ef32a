// A value that others watch.
import { useEffect, useState } from "preact/hooks";

export class Cell<T> {
  #value: T;
  #watchers = new Set<(value: T) => void>();

  constructor(value: T) {
    this.#value = value;
  }

  get value(): T {
    return this.#value;
  }

  set(value: T): void {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    for (const watcher of [...this.#watchers]) watcher(value);
  }

  change(how: (value: T) => T): void {
    this.set(how(this.#value));
  }

  watch(watcher: (value: T) => void): () => void {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }
}

export function useCell<T>(cell: Cell<T>): T {
  const [value, setValue] = useState(() => cell.value);
  useEffect(() => {
    setValue(() => cell.value);
    return cell.watch((next) => setValue(() => next));
  }, [cell]);
  return value;
}

// The same for a value that changes often: it is looked at once a frame. A page that nobody sees has no frames.
export function useCellByFrame<T>(cell: Cell<T>): T {
  const [value, setValue] = useState(() => cell.value);
  useEffect(() => {
    let frame = 0;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const forget = () => {
      cancelAnimationFrame(frame);
      clearTimeout(timer);
      frame = 0;
    };
    const look = () => {
      forget();
      setValue(() => cell.value);
    };
    const onChange = () => {
      if (frame) return;
      frame = requestAnimationFrame(look);
      timer = setTimeout(look, 100);
    };
    look();
    const leave = cell.watch(onChange);
    return () => (leave(), forget());
  }, [cell]);
  return value;
}
