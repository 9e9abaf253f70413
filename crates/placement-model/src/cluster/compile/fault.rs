//! A fault: something wrong, before it is known in which object.

use std::collections::BTreeMap;

use super::super::amount::AmountError;
use super::super::mistake::{Mistake, Object};

/// What is wrong, and where within the current object, or within another one.
pub(super) struct Fault {
    /// The object. `None`: the current object.
    object: Option<Object>,
    part: Vec<String>,
    what: String,
}

impl Fault {
    /// Returns the fault with the words for whose it is before it.
    pub(super) fn of(self, who: &str) -> Fault {
        Fault { what: format!("{who}: {}", self.what), ..self }
    }

    /// Returns the fault as one below these fields.
    pub(super) fn below(self, fields: &[&str]) -> Fault {
        let part = fields.iter().map(|field| (*field).to_owned()).chain(self.part).collect();
        Fault { part, ..self }
    }

    /// Returns the fault as one in this object, whatever the current object is.
    pub(super) fn of_object(self, object: Object) -> Fault {
        Fault { object: Some(object), ..self }
    }

    /// Returns the fault as a mistake. `object` is the current object.
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

/// Turns a fault into a mistake in the current object.
pub(super) fn at<T, E: Into<Fault>>(object: impl FnOnce() -> Object, result: Result<T, E>) -> Result<T, Mistake> {
    result.map_err(|fault| fault.into().at(object))
}

/// Turns an error into a fault of an amount or a number in these fields.
pub(super) fn below<T, E: Into<Fault>>(fields: &[&str], result: Result<T, E>) -> Result<T, Fault> {
    result.map_err(|fault| fault.into().below(fields))
}

/// Returns the indices of things by their names, and checks that each name occurs once.
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
