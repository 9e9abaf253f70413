//! Reads the configuration of Proxmox VE's HA manager in both of its forms: files of sections, as `PVE::SectionConfig`
//! writes them (a head `TYPE: ID`, and below it lines `KEY VALUE` that begin with blanks), and JSON of the API, as
//! `pvesh get` prints it.

use serde_json::{Map, Value};

use super::ImportError;

/// Which of the files is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The file `ha/rules.cfg`.
    Rules,
    /// The file `ha/groups.cfg`.
    Groups,
    /// The file `ha/resources.cfg`.
    Resources,
}

impl Form {
    /// Returns the key by which `PVE::API2::HA` gives a section's ID in JSON, beside the section's values.
    fn id_key(self) -> &'static str {
        match self {
            Form::Rules => "rule",
            Form::Groups => "group",
            Form::Resources => "sid",
        }
    }

    /// Returns the name of the file in `/etc/pve/ha`, and of the path below `/cluster/ha`.
    fn name(self) -> &'static str {
        match self {
            Form::Rules => "rules",
            Form::Groups => "groups",
            Form::Resources => "resources",
        }
    }

    /// Returns what was expected, for messages.
    fn what(self) -> String {
        let name = self.name();
        format!("/etc/pve/ha/{name}.cfg, or what `pvesh get /cluster/ha/{name} --output-format json` prints")
    }
}

/// A section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) kind: String,
    pub(super) id: String,
    /// The values with their keys, in their order.
    pub(super) values: Vec<(String, String)>,
}

impl Section {
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.values.iter().find(|(of, _)| of == key).map(|(_, value)| value.as_str())
    }

    /// Returns the value of a boolean, which is true if it stands alone or is 1.
    pub(super) fn is(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| !matches!(value, "0" | "no" | "off" | "false"))
    }

    /// Returns the values of a list, which are separated by commas, semicolons and blanks.
    pub(super) fn list(&self, key: &str) -> Vec<&str> {
        let value = self.get(key).unwrap_or("");
        value.split(|c: char| c == ',' || c == ';' || c.is_whitespace()).filter(|item| !item.is_empty()).collect()
    }
}

/// Reads all sections, in whichever form they are.
///
/// # Errors
///
/// [`ImportError`] if the text has neither form.
pub(super) fn read(form: Form, text: &str) -> Result<Vec<Section>, ImportError> {
    match text.trim_start().starts_with(['[', '{']) {
        true => json(form, text),
        false => cfg(form, text),
    }
}

fn cfg(form: Form, text: &str) -> Result<Vec<Section>, ImportError> {
    let mut sections: Vec<Section> = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let wrong = |what: &str| ImportError::Line { line: n + 1, what: format!("{what}: give {}", form.what()) };
        let is_value = line.starts_with([' ', '\t']);
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            continue;
        }
        if is_value {
            let section = sections.last_mut().ok_or_else(|| wrong("a value stands before the first 'TYPE: ID'"))?;
            let (key, value) = trimmed.split_once(char::is_whitespace).unwrap_or((trimmed, "1"));
            section.values.push((key.to_owned(), value.trim().to_owned()));
            continue;
        }
        let (kind, id) = trimmed.split_once(':').ok_or_else(|| wrong("it is no 'TYPE: ID', nor a value below one"))?;
        let id = id.trim();
        if !is_word(kind) || !is_word(id) {
            return Err(wrong("it is no 'TYPE: ID' with one word for each"));
        }
        sections.push(Section { kind: kind.to_lowercase(), id: id.to_owned(), values: Vec::new() });
    }
    Ok(sections)
}

/// Returns whether a text can be the type or ID of a section: letters, digits and `-_.`.
fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

fn json(form: Form, text: &str) -> Result<Vec<Section>, ImportError> {
    let wrong = |what: String| ImportError::Json(format!("{what}: give {}", form.what()));
    let parsed: Value = serde_json::from_str(text).map_err(|error| wrong(format!("it is no JSON ({error})")))?;
    let entries = match parsed {
        Value::Array(entries) => entries,
        // This is the answer of the API itself, without `pvesh`.
        Value::Object(mut answer) => match answer.remove("data") {
            Some(Value::Array(entries)) => entries,
            _ => return Err(wrong("it is a JSON object and no list".to_owned())),
        },
        _ => return Err(wrong("it is no JSON list".to_owned())),
    };
    (1..)
        .zip(entries)
        .map(|(n, entry)| section(form, entry).map_err(|what| wrong(format!("entry {n} {what}"))))
        .collect()
}

/// Returns the section of an entry of a list, or what is wrong with the entry.
fn section(form: Form, entry: Value) -> Result<Section, String> {
    let Value::Object(mut entry) = entry else { return Err("is no object".to_owned()) };
    let id_key = form.id_key();
    let (mut kind, mut id) = (word(&mut entry, "type")?, word(&mut entry, id_key)?);
    if form == Form::Resources {
        let (of, rest) = id.split_once(':').ok_or_else(|| format!("has '{id_key}' '{id}', which is no TYPE:ID"))?;
        (kind, id) = (of.to_owned(), rest.to_owned());
    }
    if !is_word(&kind) || !is_word(&id) {
        return Err(format!("has a 'type' or '{id_key}' that is no word"));
    }
    let mut values = Vec::new();
    for (key, value) in entry {
        let value = match value {
            Value::Null => continue,
            Value::String(text) => text,
            Value::Bool(is) => u8::from(is).to_string(),
            Value::Number(number) => number.to_string(),
            // What Proxmox VE itself found wrong, by key.
            Value::Object(errors) if key == "errors" => Value::Object(errors).to_string(),
            Value::Array(_) | Value::Object(_) => {
                return Err(format!("has '{key}', which is neither text nor a number"));
            }
        };
        values.push((key, value));
    }
    Ok(Section { kind: kind.to_lowercase(), id, values })
}

/// Takes a text out of an entry, which has to have it.
fn word(entry: &mut Map<String, Value>, key: &str) -> Result<String, String> {
    match entry.remove(key) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(format!("has no text '{key}'")),
    }
}
