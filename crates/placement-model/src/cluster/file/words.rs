//! Puts what the YAML parser reports into the words of the format.

use serde_saphyr::{Error, Location, MessageFormatter, UserMessageFormatter};

use crate::cluster::mistake::unknown;

/// What can be written where a rule names guests.
const GUESTS: &str = "{guests: [..]}, {tag: T}, {set: S} or {tenant: T}";
/// What can be written where a rule names hosts.
const HOSTS: &str = "{hosts: [..]} or {group: G}";

/// Returns what is wrong, and what can be written instead.
pub(super) fn words(error: &Error, text: &str) -> String {
    let place = Excerpt::new(text, error.location());
    let field = place.field();
    let what = if field.is_empty() { "it".to_owned() } else { format!("'{field}'") };
    match error {
        Error::SerdeUnknownField { field, expected, .. } => unknown_field(field, expected),
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            let known = unknown("kind", variant, expected);
            if known.ends_with('?') {
                return known;
            }
            format!("there is no kind '{variant}': write {}", form(field).unwrap_or(&expected.join(", ")))
        }
        Error::SerdeMissingField { field, .. } => format!("the field '{field}' is missing"),
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("'{key}' is there twice: remove one"),
        Error::Unexpected { expected: "sequence start", .. } => match place.word() {
            Some(word) => format!("{what} has to be a list: write [{word}]"),
            None => format!("{what} has to be a list: put it in brackets, or each of it behind '- '"),
        },
        Error::Unexpected { expected: "mapping start", .. } => {
            format!("{what} has to have fields: write '{{name: value}}' or a line for each")
        }
        Error::Unexpected { expected: "string scalar", .. } => format!("{what} has to be a single word"),
        Error::ExternallyTaggedEnumExpectedScalarOrMapping { .. }
        | Error::ExpectedStringKeyForExternallyTaggedEnum { .. } => match form(field) {
            Some(form) => format!("{what} has to be one of these: {form}"),
            None => format!("{what} has to be a single word"),
        },
        Error::ExpectedMappingEndAfterEnumVariantValue { .. } => match place.word() {
            Some("guests" | "tag" | "set" | "tenant") => format!("only one of these can stand there: {GUESTS}"),
            Some("hosts" | "group") => format!("only one of these can stand there: {HOSTS}"),
            _ => "each rule begins with '- ' and its kind, under which all of its fields are".into(),
        },
        Error::InvalidScalar { ty, .. } => {
            let wanted = match *ty {
                "boolean" => "true or false",
                "floating point" => "a number",
                _ => "a whole number, not below 0",
            };
            format!("{what} has to be {wanted}")
        }
        Error::SerdeInvalidType { unexpected, expected, .. } => {
            let unexpected = if unexpected == "sequence" { "a list" } else { unexpected };
            format!("{what} is {unexpected}, and has to be {expected}")
        }
        other => UserMessageFormatter.format_message(other).into_owned(),
    }
}

fn unknown_field(field: &str, expected: &[&str]) -> String {
    let is_rule = expected.contains(&"of") || expected.contains(&"relation");
    match field {
        // If another program wrote the file, `on` may come as `true`, as YAML 1.1 reads it.
        "on" | "true" if expected.contains(&"within") => {
            format!("there is no field '{field}'; did you mean 'within'?")
        }
        "force" if is_rule => {
            "there is no field 'force': owners and among are always hard, preferred is always soft, and match has \
             a relation"
                .into()
        }
        "weight" if is_rule => {
            "there is no field 'weight': owners and among are always hard, and preferred costs by weights.preference"
                .into()
        }
        _ => {
            let told = unknown("field", field, expected);
            if told.ends_with('?') { told } else { format!("{told}: there are {}", expected.join(", ")) }
        }
    }
}

/// Returns what can be written behind the name of a field.
fn form(field: &str) -> Option<&'static str> {
    match field {
        "of" | "near" | "from" => Some(GUESTS),
        "within" => Some(HOSTS),
        "force" => Some("soft or hard"),
        "relation" => Some("must, should, must-not or should-not"),
        "state" => Some("online, offline or maintenance"),
        _ => None,
    }
}

/// The place in a file where something is wrong: the parser does not name the field.
struct Excerpt<'a> {
    before: &'a str,
    from: &'a str,
}

impl<'a> Excerpt<'a> {
    fn new(text: &'a str, location: Option<Location>) -> Excerpt<'a> {
        let (line, column) = location.map_or((1, 1), |location| (location.line(), location.column()));
        let lines = text.split_inclusive('\n').take(line.saturating_sub(1) as usize);
        let start: usize = lines.map(str::len).sum();
        let on_line = text[start..].char_indices().nth(column.saturating_sub(1) as usize);
        let (before, from) = text.split_at(on_line.map_or(text.len(), |(at, _)| start + at));
        Excerpt { before, from }
    }

    /// Returns the name of the field before the place, or an empty text if there is none.
    fn field(&self) -> &'a str {
        let before = self.before.trim_end_matches(|c: char| c.is_whitespace() || "{[-\"'".contains(c));
        let Some(before) = before.strip_suffix(':') else { return "" };
        let before = before.trim_end_matches(['"', '\'']);
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        before.rfind(|c: char| !is_word(c)).map_or(before, |at| &before[at + 1..])
    }

    /// Returns the word at the place, if there is one.
    fn word(&self) -> Option<&'a str> {
        let end = self.from.find(|c: char| ",:[]{}#\"'\n".contains(c)).unwrap_or(self.from.len());
        let word = self.from[..end].trim();
        (!word.is_empty()).then_some(word)
    }
}

#[cfg(test)]
mod tests {
    use crate::cluster::read;

    /// Returns what is reported for a file with this guest and this rule.
    fn mistake_text(guest: &str, rule: &str) -> String {
        let text = format!(
            "resources: [{{name: cpu}}]\nhosts: [{{name: h1, capacity: {{cpu: 1}}}}]\nguests:\n- \
             {{name: a, {guest}}}\nrules:\n- {rule}"
        );
        read(&text).expect_err("it should be refused").to_string()
    }

    #[test]
    fn guests_are_told_in_plain_words() {
        for (guest, what) in [
            ("preferred: h1", "'preferred' has to be a list: write [h1]"),
            ("tags: {a: b}", "'tags' has to be a list: put it in brackets, or each of it behind '- '"),
            ("name: b", "'name' is there twice: remove one"),
            ("optimize: maybe", "'optimize' has to be true or false"),
            ("size: 3", "'size' has to have fields: write '{name: value}' or a line for each"),
            ("tenant: [a]", "'tenant' has to be a single word"),
            ("dirty: [a]", "it is a list, and has to be an amount like 12 or '16 GiB'"),
        ] {
            assert_eq!(mistake_text(guest, "apart: {name: x, of: {tag: w}}"), format!("line 4: {what}"));
        }
    }

    #[test]
    fn rules_are_told_in_plain_words() {
        const GUESTS: &str = "{guests: [..]}, {tag: T}, {set: S} or {tenant: T}";
        const HOSTS: &str = "{hosts: [..]} or {group: G}";
        let apart = |rest: &str| mistake_text("", &format!("apart: {{name: x, {rest}}}"));
        for (rest, what) in [
            ("of: {tag: a, set: b}", format!("only one of these can stand there: {GUESTS}")),
            ("of: lb", format!("there is no kind 'lb': write {GUESTS}")),
            ("of: {host: a}", format!("there is no kind 'host': write {GUESTS}")),
            ("of: [a]", format!("'of' has to be one of these: {GUESTS}")),
            ("of: {}", format!("'of' has to be one of these: {GUESTS}")),
            ("of: {tags: a}", "there is no kind 'tags'; did you mean 'tag'?".into()),
            ("of: {tag: a}, force: must", "there is no kind 'must': write soft or hard".into()),
            ("of: {tag: a}, force: [hard]", "'force' has to be one of these: soft or hard".into()),
            ("of: {tag: a}, weight: lots", "'weight' has to be a number".into()),
            ("of: {tag: a}, x: y", "there is no field 'x': there are name, of, from, level, force, weight".into()),
            ("force: hard", "the field 'of' is missing".into()),
        ] {
            assert_eq!(apart(rest), format!("line 6: {what}"), "{rest}");
        }
        let of = |kind: &str, rest: &str| mistake_text("", &format!("{kind}: {{name: x, of: {{tag: w}}, {rest}}}"));
        for (kind, rest, what) in [
            ("preferred", "within: [{hosts: [h1]}]", format!("'within' has to be one of these: {HOSTS}")),
            ("preferred", "within: {hosts: [h1], group: g}", format!("only one of these can stand there: {HOSTS}")),
            ("owners", "true: {hosts: [h1]}", "there is no field 'true'; did you mean 'within'?".into()),
        ] {
            assert_eq!(of(kind, rest), format!("line 6: {what}"), "{kind} {rest}");
        }
        for kind in ["owners", "among"] {
            let told = of(kind, "force: hard");
            assert!(told.contains("no field 'force': owners and among are always hard, preferred is"), "{told}");
        }
        assert!(mistake_text("", "{name: x}").ends_with(
            "there is no kind 'name': write apart, together, spread, owners, preferred, among, needs, match"
        ));
        assert!(
            mistake_text("", "{apart: {name: x, of: {tag: w}}, name: x}")
                .ends_with("each rule begins with '- ' and its kind, under which all of its fields are")
        );
    }
}
