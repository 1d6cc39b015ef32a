// A component that is drawn anew only when what it shows is not the same.
import { Component, h, type ComponentChild, type FunctionComponent } from "preact";

export function memo<Props extends object>(Inner: FunctionComponent<Props>, isSame: (one: Props, other: Props) => boolean): FunctionComponent<Props> {
  class Memo extends Component<Props> {
    override shouldComponentUpdate(next: Props): boolean {
      return !isSame(this.props as Props, next);
    }

    render(): ComponentChild {
      return h(Inner as FunctionComponent<object>, this.props);
    }
  }
  return Memo as unknown as FunctionComponent<Props>;
}
