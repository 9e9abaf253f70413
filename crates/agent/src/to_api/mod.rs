//! Converts the agent's values to those that commands read. The API's types are its own, so that what is written stays.

mod check;
mod copy;
mod facts;
mod handover;

pub(crate) use copy::route;
pub(crate) use handover::{migration_id, role};

/// A value that the API has, too.
pub(crate) trait ToApi {
    /// The API's type.
    type Api;

    /// Returns the value as the API has it.
    fn to_api(&self) -> Self::Api;
}

impl<T: ToApi> ToApi for Option<T> {
    type Api = Option<T::Api>;

    fn to_api(&self) -> Option<T::Api> {
        self.as_ref().map(ToApi::to_api)
    }
}

impl<T: ToApi> ToApi for [T] {
    type Api = Vec<T::Api>;

    fn to_api(&self) -> Vec<T::Api> {
        self.iter().map(ToApi::to_api).collect()
    }
}

impl<T: ToApi> ToApi for Result<T, String> {
    type Api = Result<T::Api, String>;

    fn to_api(&self) -> Result<T::Api, String> {
        self.as_ref().map(ToApi::to_api).map_err(Clone::clone)
    }
}

/// Converts an enum of which the API has each variant by the same name.
macro_rules! same_variants {
    ($from:ty => $to:ty { $($variant:ident),+ $(,)? }) => {
        impl crate::to_api::ToApi for $from {
            type Api = $to;

            fn to_api(&self) -> $to {
                match self {
                    $(<$from>::$variant => <$to>::$variant,)+
                }
            }
        }
    };
}

/// Converts a struct of which the API has each field by the same name; the fields after the bar are converted, too.
macro_rules! same_fields {
    ($from:ty => $to:ident { $($field:ident),* $(| $($converted:ident),+)? $(,)? }) => {
        impl crate::to_api::ToApi for $from {
            type Api = $to;

            fn to_api(&self) -> $to {
                $to {
                    $($field: self.$field.clone(),)*
                    $($($converted: self.$converted.to_api(),)+)?
                }
            }
        }
    };
}

use {same_fields, same_variants};

#[cfg(test)]
mod tests {
    use skein_api as api;
    use skein_forecast::convergence::THROTTLE_MAX;
    use skein_inventory::definition;

    #[test]
    fn what_may_be_asked_is_what_can_be_done() {
        let whole = |range: &std::ops::RangeInclusive<u64>| (*range.start(), *range.end());
        let priority = (u64::from(*api::PRIORITY_RANGE.start()), u64::from(*api::PRIORITY_RANGE.end()));
        assert_eq!(priority, whole(&definition::PRIORITY));
        assert_eq!(whole(&api::DOWNTIME_LIMIT_RANGE_MS), whole(&definition::DOWNTIME_LIMIT_MS));
        assert_eq!(u64::from(*api::MULTIFD_CHANNELS_RANGE.end()), *definition::MULTIFD_CHANNELS.end());
        assert_eq!(*api::ALLOW_THROTTLE_PERCENT_RANGE.end(), THROTTLE_MAX);
        assert_eq!(api::NAME_BYTES_MAX, definition::NAME_BYTES_MAX);
        let long = "a".repeat(api::NAME_BYTES_MAX);
        for name in ["web1", "0", "a.b_c-d", &long, &format!("{long}a"), "", "-a", ".a", "A", "a b", "a/b", "\u{fc}"] {
            assert_eq!(api::is_vm_name(name), definition::is_name(name), "{name:?}");
        }
    }
}
