//! What is wrong, before it is known with which object.

use std::collections::BTreeMap;

use super::super::amount::AmountError;
use super::super::mistake::{Mistake, Object};

/// What is wrong, and where within the object at hand, or within another one.
pub(super) struct Fault {
    /// None: the object at hand.
    object: Option<Object>,
    part: Vec<String>,
    what: String,
}

impl Fault {
    /// The same, and whose it is.
    pub(super) fn of(self, who: &str) -> Fault {
        Fault { what: format!("{who}: {}", self.what), ..self }
    }

    /// The same, below these fields.
    pub(super) fn below(self, fields: &[&str]) -> Fault {
        let part = fields.iter().map(|field| (*field).to_owned()).chain(self.part).collect();
        Fault { part, ..self }
    }

    /// The same, in this object whatever is at hand.
    pub(super) fn of_object(self, object: Object) -> Fault {
        Fault { object: Some(object), ..self }
    }

    /// What is wrong with the object at hand.
    pub(super) fn at(self, object: impl FnOnce() -> Object) -> Mistake {
        Mistake { object: self.object.unwrap_or_else(object), part: self.part, what: self.what }
    }
}

impl From<String> for Fault {
    fn from(what: String) -> Fault {
        Fault { object: None, part: Vec::new(), what }
    }
}

impl From<AmountError> for Fault {
    fn from(error: AmountError) -> Fault {
        error.to_string().into()
    }
}

/// What is wrong with the object at hand, if anything is.
pub(super) fn at<T, E: Into<Fault>>(object: impl FnOnce() -> Object, result: Result<T, E>) -> Result<T, Mistake> {
    result.map_err(|fault| fault.into().at(object))
}

/// What is wrong with an amount or a number in these fields.
pub(super) fn below<T, E: Into<Fault>>(fields: &[&str], result: Result<T, E>) -> Result<T, Fault> {
    result.map_err(|fault| fault.into().below(fields))
}

/// Things by their names, each of which is there once.
pub(super) fn index<'a>(
    names: impl Iterator<Item = &'a String>,
    object: impl Fn(usize, &str) -> Object,
) -> Result<BTreeMap<&'a str, u32>, Mistake> {
    let mut all = BTreeMap::new();
    for (n, name) in (0..).zip(names) {
        if all.insert(name.as_str(), n).is_some() {
            let object = object(n as usize, name);
            let what = format!("there are two {}s '{name}': rename one", object.kind.word());
            return Err(Fault::from(what).at(|| object));
        }
    }
    Ok(all)
}
