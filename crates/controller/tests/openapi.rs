//! The document in the tree is that of the routes, and says what every route refuses.

use std::collections::BTreeSet;

use serde_json::Value;
use skein_controller::http::openapi;

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");

#[test]
fn the_document_in_the_tree_is_that_of_the_routes() {
    let made = openapi().unwrap() + "\n";
    if std::env::var_os("SKEIN_WRITE_OPENAPI").is_some() {
        std::fs::write(COMMITTED, &made).unwrap();
    }
    let committed = std::fs::read_to_string(COMMITTED).unwrap_or_default();
    assert!(
        made == committed,
        "{COMMITTED} is not what the routes are: write it anew with SKEIN_WRITE_OPENAPI=1 cargo test -p \
         skein-controller --test openapi, and see that nothing was taken away"
    );
}

#[test]
fn every_route_documents_its_refusals() {
    let document: Value = serde_json::from_str(&openapi().unwrap()).unwrap();
    let mut ids = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, route) in methods.as_object().unwrap().iter().filter(|_| path != "/healthz") {
            let responses = route["responses"].as_object().unwrap();
            let reads = ["400", "401", "403", "404", "503"];
            let writes = ["409", "412", "413", "415", "422"];
            let expected = reads.iter().chain(writes.iter().filter(|_| method != "get"));
            for status in expected {
                let body = &responses[*status]["content"]["application/problem+json"]["schema"]["$ref"];
                assert_eq!(body, "#/components/schemas/ProblemDetails", "{method} {path} {status}");
            }
            assert!(route["summary"].is_string(), "{method} {path} has no summary");
            assert!(ids.insert(route["operationId"].as_str().unwrap().to_owned()), "{method} {path} has no own id");
        }
    }
    assert!(ids.len() >= 21, "{ids:?}");
}
