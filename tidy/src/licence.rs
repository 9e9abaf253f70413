//! SPDX licence expressions, as crates give them. <https://spdx.github.io/spdx-spec/v2.3/SPDX-license-expressions/>

/// Returns whether an expression is satisfied by the licences in `allowed`. `A/B` is an old way to write `A OR B`. An
/// exception (`A WITH B`) permits more than its licence, so the licence decides.
///
/// `None`: the expression cannot be read.
pub fn is_satisfied(expression: &str, allowed: &[&str]) -> Option<bool> {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader { words: &words, allowed };
    let satisfied = reader.any()?;
    reader.words.is_empty().then_some(satisfied)
}

struct Reader<'a> {
    /// What has not been read yet.
    words: &'a [&'a str],
    allowed: &'a [&'a str],
}

impl Reader<'_> {
    fn takes(&mut self, word: &str) -> bool {
        let is_next = self.words.first() == Some(&word);
        if is_next {
            self.words = &self.words[1..];
        }
        is_next
    }

    fn any(&mut self) -> Option<bool> {
        let mut satisfied = self.all()?;
        while self.takes("OR") {
            satisfied |= self.all()?;
        }
        Some(satisfied)
    }

    fn all(&mut self) -> Option<bool> {
        let mut satisfied = self.one()?;
        while self.takes("AND") {
            satisfied &= self.one()?;
        }
        Some(satisfied)
    }

    fn one(&mut self) -> Option<bool> {
        if self.takes("(") {
            let satisfied = self.any()?;
            return self.takes(")").then_some(satisfied);
        }
        let (licence, rest) = self.words.split_first()?;
        if matches!(*licence, "OR" | "AND" | "WITH" | ")") {
            return None;
        }
        self.words = rest;
        if self.takes("WITH") {
            self.words = self.words.split_first()?.1;
        }
        Some(self.allowed.contains(licence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_satisfied_or_not() {
        let cases = [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0 AND MIT", false),
            ("GPL-3.0/MIT", true),
            ("MIT AND (GPL-3.0 OR ISC)", true),
            ("(MIT OR ISC) AND GPL-3.0", false),
            ("MIT WITH LLVM-exception OR GPL-3.0", true),
            ("MIT OR GPL-3.0 AND GPL-2.0", true),
        ];
        for (expression, expected) in cases {
            assert_eq!(is_satisfied(expression, &["MIT", "ISC"]), Some(expected), "{expression}");
        }
    }

    #[test]
    fn nonsense_is_no_expression() {
        for expression in ["", "MIT OR", "(MIT", "MIT)", "MIT ISC", "AND MIT", "MIT WITH"] {
            assert_eq!(is_satisfied(expression, &["MIT", "ISC"]), None, "{expression}");
        }
    }
}
