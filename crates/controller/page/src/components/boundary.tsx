// Keeps a mistake of one screen from taking the whole page with it.
import { Component, type ComponentChildren } from "preact";
import { problemOf, type Problem } from "../api/problem";
import { ProblemBox } from "./problem";

export class Boundary extends Component<{ children: ComponentChildren }, { problem?: Problem }> {
  override state: { problem?: Problem } = {};

  override componentDidCatch(error: unknown): void {
    console.error(error);
    this.setState({ problem: problemOf(error) });
  }

  override render() {
    return this.state.problem ? <ProblemBox of={this.state.problem} /> : this.props.children;
  }
}
