//! Files of sections, as Proxmox VE's `PVE::SectionConfig` writes them: a head `TYPE: ID`, and below it lines `KEY VALUE` that begin with
//! blanks.

use super::ImportError;

/// A section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) kind: String,
    pub(super) id: String,
    /// In their order.
    pub(super) values: Vec<(String, String)>,
}

impl Section {
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.values.iter().find(|(of, _)| of == key).map(|(_, value)| value.as_str())
    }

    /// A boolean: alone or 1 it is true.
    pub(super) fn is(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| !matches!(value, "0" | "no" | "off" | "false"))
    }

    /// A list, which commas, semicolons and blanks divide.
    pub(super) fn list(&self, key: &str) -> Vec<&str> {
        let value = self.get(key).unwrap_or("");
        value.split(|c: char| c == ',' || c == ';' || c.is_whitespace()).filter(|item| !item.is_empty()).collect()
    }
}

/// Reads all sections.
pub(super) fn read(text: &str) -> Result<Vec<Section>, ImportError> {
    let mut sections: Vec<Section> = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let wrong = |what: &str| ImportError::Line { line: n + 1, what: what.to_owned() };
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
        if kind.is_empty() || id.is_empty() || id.contains(char::is_whitespace) {
            return Err(wrong("it is no 'TYPE: ID' with one word for each"));
        }
        sections.push(Section { kind: kind.to_lowercase(), id: id.to_owned(), values: Vec::new() });
    }
    Ok(sections)
}
