//! A request's body: JSON.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, OptionalFromRequest, Request};
use axum::http::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::{Number, Value};

use super::app::Shared;
use super::problem::Problem;

/// How many bytes a request's body has at most.
pub const BODY_BYTES_MAX: usize = 1 << 20;

/// A body.
pub(crate) struct Body<T>(pub T);

/// A body that may be left out, or `null`.
pub(crate) struct OptionalBody<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Shared> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Shared) -> Result<Body<T>, Problem> {
        let Json(value) = <Json<Value> as FromRequest<Shared>>::from_request(request, app).await.map_err(refused)?;
        Ok(Body(read(value)?))
    }
}

impl<T: DeserializeOwned + Default> FromRequest<Shared> for OptionalBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Shared) -> Result<OptionalBody<T>, Problem> {
        let value = <Json<Value> as OptionalFromRequest<Shared>>::from_request(request, app).await.map_err(refused)?;
        match value {
            None | Some(Json(Value::Null)) => Ok(OptionalBody(T::default())),
            Some(Json(value)) => Ok(OptionalBody(read(value)?)),
        }
    }
}

fn refused(rejection: JsonRejection) -> Problem {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        let message = format!("the body has more than {BODY_BYTES_MAX} bytes");
        return Problem::new(rejection.status(), message, "send less: see /openapi.json for what may be sent");
    }
    Problem::new(rejection.status(), rejection.body_text(), "send JSON, with 'Content-Type: application/json'")
}

fn read<T: DeserializeOwned>(mut value: Value) -> Result<T, Problem> {
    whole(&mut value);
    // Lists would do as well for serde, by the order of a structure's fields.
    if !value.is_object() {
        return Err(Problem::invalid("the body is no object", "see /openapi.json for what may be sent"));
    }
    serde_path_to_error::deserialize(value).map_err(|error| {
        let (path, inner) = (error.path().to_string(), error.into_inner());
        let at = if path == "." { String::new() } else { format!("{path}: ") };
        Problem::invalid(format!("{at}{inner}"), "see /openapi.json for what may be sent")
    })
}

/// Makes integers of numbers such as 3.0, which are integers by JSON Schema, and none to serde.
fn whole(value: &mut Value) {
    match value {
        Value::Number(number) => {
            // Up to 2^53 a double has every integer.
            let is_whole = |double: &f64| double.fract() == 0.0 && double.abs() <= 9_007_199_254_740_992.0;
            if number.is_f64()
                && let Some(double) = number.as_f64().filter(is_whole)
            {
                let integer = double as i64;
                *number = u64::try_from(integer).map_or_else(|_| Number::from(integer), Number::from);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole),
        Value::Object(fields) => fields.values_mut().for_each(whole),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_numbers_are_integers() {
        let mut value = json!({"a": [3.0, -2.0, 0.5, 1e300], "b": {"c": 7, "d": "1.0"}});
        whole(&mut value);
        assert_eq!(value, json!({"a": [3, -2, 0.5, 1e300], "b": {"c": 7, "d": "1.0"}}));
    }
}
