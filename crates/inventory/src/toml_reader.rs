//! TOML read in one go: everything that is wrong with a text is collected, each with its place and what to do about it.
//! (Serde would stop at the first error.)

use std::fmt;
use std::ops::{Range, RangeInclusive};

use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::claim::{claim, printable};

/// The longest text that is read: twice what the longest definition (256 arguments of 4 KiB, all of it escaped) takes.
pub const TEXT_BYTES_MAX: usize = 4 << 20;
/// The most diagnostics that are reported at once. A person who has more mends these first.
const DIAGNOSTICS_MAX: usize = 100;
/// The most characters of a line that are shown: about a terminal's width.
const EXCERPT_CHARS: usize = 100;
/// The most bytes of a value that are repeated in a reason.
const QUOTE_BYTES_MAX: usize = 80;

/// Something that is wrong with a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnostic {
    /// The line, from 1.
    pub line: usize,
    /// The character in the line, from 1.
    pub column: usize,
    /// The line, or, of a long line, the part around the place.
    #[serde(deserialize_with = "claim")]
    pub excerpt: String,
    /// How many characters of `excerpt` are before the place.
    pub before: usize,
    /// What is wrong.
    #[serde(deserialize_with = "claim")]
    pub reason: String,
    /// What to do.
    #[serde(deserialize_with = "claim")]
    pub cure: String,
}

/// Why a text will not do: all its diagnostics, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct ParseError {
    /// Where the text came from.
    #[serde(deserialize_with = "claim")]
    pub file: String,
    /// The diagnostics, at least one.
    #[serde(rename = "faults")]
    pub diagnostics: Vec<Diagnostic>,
    /// How many more there were.
    pub more: usize,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, fault) in self.diagnostics.iter().enumerate() {
            let Diagnostic { line, column, excerpt, reason, cure, .. } = fault;
            let (break_before, digits) = (if number == 0 { "" } else { "\n" }, line.to_string().len());
            writeln!(f, "{break_before}{}:{line}:{column}: {reason}", self.file)?;
            if !excerpt.trim().is_empty() {
                writeln!(f, "  {line} | {excerpt}")?;
                // `before` is a claim: there are no more blanks than an excerpt is long.
                writeln!(f, "  {:digits$} | {:before$}^", "", "", before = fault.before.min(EXCERPT_CHARS))?;
            }
            write!(f, "  help: {cure}")?;
        }
        match self.more {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

/// Returns `value` as it is repeated in a reason.
pub(crate) fn quote(value: &str) -> String {
    format!("\"{}\"", printable(value.to_owned(), QUOTE_BYTES_MAX))
}

/// Collects what is wrong.
pub(crate) struct Reader {
    diagnostics: Vec<(Range<usize>, String, String)>,
    more: usize,
}

/// Reads `text` with `read`, which gets the root table and may return anything if it reports a diagnostic.
///
/// # Errors
///
/// All diagnostics.
pub(crate) fn read<T>(text: &str, file: &str, read: impl FnOnce(&mut Reader, Table) -> T) -> Result<T, ParseError> {
    let mut reader = Reader { diagnostics: Vec::new(), more: 0 };
    let mut value = None;
    if text.len() > TEXT_BYTES_MAX {
        let reason = format!("the file has {} bytes, {TEXT_BYTES_MAX} are read at most", text.len());
        reader.report_at(0..0, reason, "is it the file that was meant?");
    } else {
        match DeTable::parse(text) {
            Ok(root) => value = Some(read(&mut reader, Table::new("", 0..0, root.get_ref()))),
            // Only the first error is reported: what follows a broken line is guesswork.
            Err(error) => {
                let span = error.span().unwrap_or(0..0);
                let (reason, cure) = explain(text, &span, error.message());
                reader.report_at(span, reason, cure);
            }
        }
    }
    match value {
        Some(value) if reader.diagnostics.is_empty() => Ok(value),
        _ => Err(reader.finish(text, file)),
    }
}

/// Puts a syntax error into words. The parser's own messages say what it expected, not what people forget.
fn explain(text: &str, span: &Range<usize>, message: &str) -> (String, String) {
    let part = text.get(span.clone()).unwrap_or_default();
    let cure = if message.contains("duplicate key") {
        "keep one of the two"
    } else if ["quoted", "literal", "basic string"].iter().any(|what| message.contains(what)) {
        "texts stand in double quotes: name = \"web1\""
    } else if part.contains('\\') || message.contains("escape") {
        "a backslash in double quotes begins an escape: double it, or use single quotes"
    } else {
        "lines are KEY = VALUE, with texts in double quotes, or [section] or [[section]] (see toml.io)"
    };
    (format!("this is not TOML: {message}"), cure.to_owned())
}

impl Reader {
    /// Reports that what is at `span` is wrong, and what to do.
    pub fn report_at(&mut self, span: Range<usize>, reason: impl Into<String>, cure: impl Into<String>) {
        if self.diagnostics.len() < DIAGNOSTICS_MAX {
            self.diagnostics.push((span, reason.into(), cure.into()));
        } else {
            self.more += 1;
        }
    }

    fn finish(mut self, text: &str, file: &str) -> ParseError {
        self.diagnostics.sort_by_key(|(span, ..)| span.start);
        let faults = self.diagnostics.into_iter().map(|(span, reason, cure)| {
            let start = text.floor_char_boundary(span.start);
            let line_start = text[..start].rfind('\n').map_or(0, |end| end + 1);
            let line = text[line_start..].lines().next().unwrap_or_default();
            let column = text[line_start..start].chars().count();
            // A long line is shown from a little before the place.
            let skip = column.saturating_sub(EXCERPT_CHARS / 2);
            let skip = if line.chars().nth(EXCERPT_CHARS).is_some() { skip } else { 0 };
            let excerpt: String =
                line.chars().skip(skip).take(EXCERPT_CHARS).map(|c| if c == '\t' { ' ' } else { c }).collect();
            Diagnostic {
                line: text[..line_start].matches('\n').count() + 1,
                column: column + 1,
                // The place may be in the line's end, \r
                // , which is not shown.
                before: (column - skip).min(excerpt.chars().count()),
                excerpt: printable(excerpt, EXCERPT_CHARS * 4),
                reason: printable(reason, 1 << 10),
                cure: printable(cure, 1 << 10),
            }
        });
        ParseError { file: printable(file.to_owned(), 1 << 10), diagnostics: faults.collect(), more: self.more }
    }
}

/// A table whose keys are asked for one by one. Keys that nobody asked for are unknown.
pub(crate) struct Table<'a> {
    /// The name for messages: `""` or `[migration]`.
    name: &'static str,
    /// The table's header.
    pub span: Range<usize>,
    items: &'a DeTable<'a>,
    asked: Vec<&'static str>,
}

impl<'a> Table<'a> {
    fn new(name: &'static str, span: Range<usize>, items: &'a DeTable<'a>) -> Table<'a> {
        Table { name, span, items, asked: Vec::new() }
    }

    /// Returns the value of `key`.
    pub fn get(&mut self, key: &'static str) -> Option<Value<'a>> {
        self.asked.push(key);
        let value = self.items.get(key)?;
        Some(Value { key, span: value.span(), value: value.get_ref() })
    }

    /// Returns the value of `key`, and reports where it is missing.
    pub fn require(&mut self, reader: &mut Reader, key: &'static str, example: &str) -> Option<Value<'a>> {
        let value = self.get(key);
        if value.is_none() {
            let of = if self.name.is_empty() { String::new() } else { format!(" in this {}", self.name) };
            reader.report_at(
                self.span.clone(),
                format!("{key} is missing{of}"),
                format!("add a line, such as {example}"),
            );
        }
        value
    }

    /// Reports keys that nobody asked for. `elsewhere` are keys of the root table, which people write below a header.
    pub fn finish(self, reader: &mut Reader, elsewhere: &[&str]) {
        for (key, _) in self.items.iter().filter(|(key, _)| !self.asked.contains(&key.get_ref().as_ref())) {
            if reader.diagnostics.len() >= DIAGNOSTICS_MAX {
                // Looking for a similar key costs time, and nobody would read it.
                reader.more += 1;
                continue;
            }
            let (span, key) = (key.span(), key.get_ref().as_ref());
            let likeness = |known: &&&str| (strsim::jaro_winkler(known, &key.to_ascii_lowercase()) * 1000.0) as u32;
            let alike = self.asked.iter().filter(|known| likeness(known) >= 750).max_by_key(likeness);
            let cure = match alike {
                _ if elsewhere.contains(&key) && !self.name.is_empty() => {
                    format!("it belongs to the VM: write it above the first section, such as {}", self.name)
                }
                Some(known) => format!("did you mean {known}?"),
                None => format!("known here: {}", self.asked.join(", ")),
            };
            let place = if self.name.is_empty() { String::new() } else { format!(" in {}", self.name) };
            reader.report_at(span, format!("there is no key {}{place}", quote(key)), cure);
        }
    }
}

/// A value, its key and its place.
#[derive(Clone)]
pub(crate) struct Value<'a> {
    pub key: &'static str,
    pub span: Range<usize>,
    value: &'a DeValue<'a>,
}

impl<'a> Value<'a> {
    fn wrong_type(&self, reader: &mut Reader, expect: &str, cure: impl Into<String>) {
        let article = |noun: &str| if noun.starts_with(['a', 'i']) { "an" } else { "a" };
        let (key, is) = (self.key, self.value.type_str());
        let reason = format!("{key} is {} {is} and must be {} {expect}", article(is), article(expect));
        reader.report_at(self.span.clone(), reason, cure);
    }

    /// Reports what is wrong with this value.
    pub fn report_at(&self, reader: &mut Reader, reason: impl Into<String>, cure: impl Into<String>) {
        reader.report_at(self.span.clone(), reason, cure);
    }

    /// Reads a string of 1 to `bytes_max` bytes without control characters.
    pub fn string(&self, reader: &mut Reader, bytes_max: usize) -> Option<&'a str> {
        let Some(text) = self.value.as_str() else {
            let raw = match self.value {
                DeValue::Integer(number) => number.as_str(),
                DeValue::Boolean(true) => "true",
                DeValue::Boolean(false) => "false",
                _ => "...",
            };
            self.wrong_type(reader, "string", format!("write it in quotes: {} = {}", self.key, quote(raw)));
            return None;
        };
        let fault = |what: String, cure: &str| Some((format!("{} {what}", self.key), cure.to_owned()));
        let problem = match text {
            "" => fault("is empty".into(), "give a value, or leave the line out"),
            _ if text.len() > bytes_max => {
                fault(format!("has {} bytes, {bytes_max} are the most", text.len()), "make it shorter")
            }
            _ if text.contains(char::is_control) => fault("contains a control character".into(), "remove it"),
            _ => return Some(text),
        };
        if let Some((reason, cure)) = problem {
            self.report_at(reader, reason, cure);
        }
        None
    }

    /// Reads a whole number in `range`.
    pub fn integer(&self, reader: &mut Reader, range: RangeInclusive<u64>) -> Option<u64> {
        let Some(number) = self.value.as_integer() else {
            self.wrong_type(
                reader,
                "integer",
                format!("write a whole number without quotes: {} = {}", self.key, range.start()),
            );
            return None;
        };
        let value = i128::from_str_radix(number.as_str(), number.radix()).ok().and_then(|n| u64::try_from(n).ok());
        let value = value.filter(|n| range.contains(n));
        if value.is_none() {
            let reason = format!("{} is {}", self.key, printable(number.as_str().to_owned(), QUOTE_BYTES_MAX));
            self.report_at(reader, reason, format!("it may be {} to {}", range.start(), range.end()));
        }
        value
    }

    /// Reads true or false.
    pub fn boolean(&self, reader: &mut Reader) -> Option<bool> {
        let value = self.value.as_bool();
        if value.is_none() {
            self.wrong_type(reader, "boolean", format!("write {} = true or {} = false", self.key, self.key));
        }
        value
    }

    /// Reads one of a few words.
    pub fn word<T: Copy>(&self, reader: &mut Reader, words: &[(&str, T)]) -> Option<T> {
        let text = self.string(reader, QUOTE_BYTES_MAX)?;
        let found = words.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            let words: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
            self.report_at(
                reader,
                format!("{} cannot be {}", self.key, quote(text)),
                format!("it may be {}", words.join(" or ")),
            );
        }
        found.map(|(_, value)| *value)
    }

    /// Reads a string with `parse`, whose error says what to do.
    pub fn parsed<T>(
        &self,
        reader: &mut Reader,
        bytes_max: usize,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        // A number without its unit lacks more than quotes.
        if let DeValue::Integer(number) = self.value
            && let Err(cure) = parse(number.as_str())
        {
            self.wrong_type(reader, "string", cure);
            return None;
        }
        let text = self.string(reader, bytes_max)?;
        match parse(text) {
            Ok(value) => Some(value),
            Err(cure) => {
                self.report_at(reader, format!("{} cannot be {}", self.key, quote(text)), cure);
                None
            }
        }
    }

    /// Reads a `[section]`, which messages call so.
    pub fn table(&self, reader: &mut Reader, name: &'static str) -> Option<Table<'a>> {
        match self.value.as_table() {
            Some(items) => Some(Table::new(name, self.span.clone(), items)),
            None => {
                self.wrong_type(reader, "table", format!("write {name} on a line of its own, and its keys below"));
                None
            }
        }
    }

    /// Reads `[[section]]`s, at most `most`, which messages call so.
    pub fn tables(&self, reader: &mut Reader, name: &'static str, most: usize) -> Vec<Table<'a>> {
        let Some(array) = self.value.as_array().filter(|array| array.iter().all(|item| item.get_ref().is_table()))
        else {
            self.wrong_type(reader, "array of tables", format!("write {name}, with two brackets, above each"));
            return Vec::new();
        };
        let mut tables = Vec::new();
        self.limited(reader, array, most, |_, item| {
            tables.extend(item.get_ref().as_table().map(|items| Table::new(name, item.span(), items)));
        });
        tables
    }

    /// Reads the strings of an array, at most `most`, each with its place.
    pub fn strings(&self, reader: &mut Reader, most: usize, bytes_max: usize) -> Vec<(Value<'a>, &'a str)> {
        let Some(array) = self.value.as_array() else {
            self.wrong_type(reader, "array", format!("write {} = [\"...\", \"...\"]", self.key));
            return Vec::new();
        };
        let mut strings = Vec::new();
        self.limited(reader, array, most, |reader, item| {
            let item = Value { key: self.key, span: item.span(), value: item.get_ref() };
            strings.extend(item.string(reader, bytes_max).map(|text| (item, text)));
        });
        strings
    }

    /// Returns whether the value is `[]`.
    pub fn is_empty_array(&self) -> bool {
        self.value.as_array().is_some_and(|array| array.is_empty())
    }

    fn limited(
        &self,
        reader: &mut Reader,
        array: &'a [Spanned<DeValue<'a>>],
        most: usize,
        mut each: impl FnMut(&mut Reader, &'a Spanned<DeValue<'a>>),
    ) {
        if let Some(beyond) = array.get(most) {
            let reason = format!("{} has {} entries, {most} are the most", self.key, array.len());
            reader.report_at(beyond.span(), reason, "remove this one and those after it");
        }
        array.iter().take(most).for_each(|item| each(reader, item));
    }
}
