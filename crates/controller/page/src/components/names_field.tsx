// A list of names as text: kept as it is written, while it means the same.
import { useState } from "preact/hooks";
import { TextField } from "./field";
import { readNames, writeNames } from "./settings_text";

export function NamesField({
  label,
  of,
  set,
  hint,
  disabled,
}: {
  label: string;
  of: readonly string[] | null | undefined;
  set: (of: string[]) => void;
  hint: string;
  disabled: boolean;
}) {
  const [text, setText] = useState<string>();
  const written = writeNames(of);
  const shown = text !== undefined && writeNames(readNames(text)) === written ? text : written;
  return (
    <TextField
      label={label}
      value={shown}
      hint={hint}
      disabled={disabled}
      set={(next) => {
        setText(next);
        set(readNames(next));
      }}
    />
  );
}
