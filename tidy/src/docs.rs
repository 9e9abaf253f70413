//! No field or variant is documented by a lone pronoun or question word, as `/// Who.`: that pleases the compiler's
//! lint and tells a reader nothing.

use crate::Finding;
use crate::modules::Sources;

/// The words that do not do.
const BARE: [&str; 21] = [
    "all", "how", "it", "now", "nothing", "one", "so", "that", "them", "these", "they", "this", "those", "what",
    "when", "where", "which", "who", "whom", "whose", "why",
];

/// Returns every field and variant that is documented by one of them.
pub fn check(sources: &Sources) -> Vec<Finding> {
    let docs = sources.iter().flat_map(|(path, source)| source.one_word_docs.iter().map(move |doc| (path, doc)));
    docs.filter(|(_, doc)| BARE.contains(&doc.word.to_lowercase().as_str()))
        .map(|(path, doc)| {
            Finding::new(path, doc.line, format!("`{}.` explains nothing: say what the value is", doc.word))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;

    fn found(text: &str) -> Vec<String> {
        let source = Source::parse(text).expect("the text is Rust");
        check(&Sources::from([("a.rs".to_string(), source)])).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_lone_question_word_is_found() {
        let text = "struct S {\n    /// Who.\n    a: u8,\n}\nenum E {\n    /// WHY.\n    V { /** how */ b: u8 },\n}\n";
        let expected = [(2, "Who"), (6, "WHY"), (7, "how")];
        assert_eq!(
            found(text),
            expected.map(|(line, word)| format!("a.rs:{line}: `{word}.` explains nothing: say what the value is"))
        );
    }

    #[test]
    fn a_noun_or_a_sentence_will_do() {
        assert_eq!(found("struct S {\n    /// Milliseconds.\n    a: u8,\n    /// Who asks.\n    b: u8,\n}\n"), [""; 0]);
    }
}
