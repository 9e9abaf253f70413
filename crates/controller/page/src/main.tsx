// Where the page begins.
import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "./css/base.css";
import "./css/frame.css";
import "./css/parts.css";
import "./css/list.css";
import "./css/screens.css";
import { App } from "./app";
import { apply } from "./theme";

apply();
const root = document.getElementById("page");
if (root) render(<App />, root);
