// Fields of forms, each with its label and a hint.
import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";

interface Common {
  label: string;
  hint?: ComponentChildren;
  disabled?: boolean | undefined;
}

/** Keeps the form of a field from being sent while its value is wrong. */
function barring(wrong: string | undefined): (field: HTMLInputElement | HTMLTextAreaElement | null) => void {
  return (field) => field?.setCustomValidity(wrong ?? "");
}

export function TextField({
  label,
  hint,
  value,
  set,
  placeholder,
  list,
  type,
  wrong,
  disabled,
  autofocus,
}: Common & {
  value: string;
  set: (value: string) => void;
  placeholder?: string;
  list?: readonly string[];
  type?: "text" | "password" | "search" | "datetime-local";
  /** What is wrong with the value, in words. */
  wrong?: string | undefined;
  autofocus?: boolean;
}) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <input
        id={id}
        ref={barring(wrong)}
        value={value}
        placeholder={placeholder}
        disabled={disabled}
        {...({ type: type ?? "text", list: list && `${id}-list` } as object)}
        autocomplete="off"
        spellcheck={false}
        aria-describedby={`${id}-hint`}
        aria-invalid={wrong ? "true" : undefined}
        autofocus={autofocus}
        onInput={(event) => set(event.currentTarget.value)}
      />
      {list && (
        <datalist id={`${id}-list`}>
          {list.map((item) => (
            <option key={item} value={item} />
          ))}
        </datalist>
      )}
      <span class={wrong ? "hint wrong" : "hint"} id={`${id}-hint`}>
        {wrong ?? hint}
      </span>
    </div>
  );
}

export function NumberField({
  label,
  hint,
  value,
  set,
  min,
  max,
  unit,
  disabled,
}: Common & {
  value: number | null;
  set: (value: number | null) => void;
  min?: number;
  max?: number;
  unit?: string;
}) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>
        {label}
        {unit && <span class="dim"> ({unit})</span>}
      </label>
      <input
        id={id}
        type="number"
        value={value ?? ""}
        min={min}
        max={max}
        disabled={disabled}
        inputmode="numeric"
        aria-describedby={`${id}-hint`}
        onInput={(event) => set(event.currentTarget.value === "" ? null : Number(event.currentTarget.value))}
      />
      <span class="hint" id={`${id}-hint`}>
        {hint}
      </span>
    </div>
  );
}

export function AreaField({
  label,
  hint,
  value,
  set,
  rows,
  wrong,
  disabled,
}: Common & {
  value: string;
  set: (value: string) => void;
  rows?: number;
  wrong?: string | undefined;
}) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <textarea
        id={id}
        ref={barring(wrong)}
        value={value}
        rows={rows ?? 3}
        spellcheck={false}
        disabled={disabled}
        aria-describedby={`${id}-hint`}
        aria-invalid={wrong ? "true" : undefined}
        onInput={(event) => set(event.currentTarget.value)}
      />
      <span class={wrong ? "hint wrong" : "hint"} id={`${id}-hint`}>
        {wrong ?? hint}
      </span>
    </div>
  );
}

export function CheckField({
  label,
  hint,
  value,
  set,
  disabled,
}: Common & {
  value: boolean;
  set: (value: boolean) => void;
}) {
  const id = useId();
  return (
    <div class="field check">
      <input
        id={id}
        type="checkbox"
        checked={value}
        disabled={disabled}
        aria-describedby={`${id}-hint`}
        onChange={(event) => set(event.currentTarget.checked)}
      />
      <label for={id}>{label}</label>
      <span class="hint" id={`${id}-hint`}>
        {hint}
      </span>
    </div>
  );
}

export function SelectField<T extends string>({
  label,
  hint,
  value,
  set,
  options,
  disabled,
}: Common & {
  value: T;
  set: (value: T) => void;
  options: readonly (readonly [T, string])[];
}) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <select
        id={id}
        value={value}
        disabled={disabled}
        aria-describedby={`${id}-hint`}
        onChange={(event) => set(event.currentTarget.value as T)}
      >
        {options.map(([key, name]) => (
          <option key={key} value={key}>
            {name}
          </option>
        ))}
      </select>
      <span class="hint" id={`${id}-hint`}>
        {hint}
      </span>
    </div>
  );
}
