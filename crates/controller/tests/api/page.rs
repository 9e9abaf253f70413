//! What the page needs: its files, a browser's session, migrations as they go on, what was.

use std::sync::atomic::Ordering;

use http_body_util::BodyExt;
use hyper::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, ETAG, SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
use skein_api::cluster::{History, Host, MigrationEnds, MigrationView, Page, Session, TokenSecret, VmDefinition};
use skein_api::{Outcome, Role as End};

use crate::drain::all_seen;
use crate::setup::{LONG, Method, Role, TestCluster, TestController, get, send, send_with, until};

/// Returns the cookie of a session that this token begins.
async fn cookie(cluster: &TestCluster, controller: &TestController, token: &str) -> String {
    let nobody = cluster.client(controller, "");
    let begun = send(&nobody, Method::POST, "/api/v1/session", &format!("{{\"token\":\"{token}\"}}")).await;
    assert_eq!(begun.status, 200, "{}", String::from_utf8_lossy(&begun.body));
    let set = begun.headers[SET_COOKIE].to_str().unwrap();
    for part in ["; Path=/", "; Secure", "; HttpOnly", "; SameSite=Strict"] {
        assert!(set.contains(part), "{set}");
    }
    set.split(';').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_is_served_to_everybody_and_may_do_nothing_elsewhere() {
    let cluster = TestCluster::new();
    let controller = cluster.start("c1").await;
    let nobody = cluster.client(&controller, "");
    for path in ["/", "/page.js", "/page.css", "/icon.svg", "/LICENSES.txt"] {
        let file = send(&nobody, Method::GET, path, "").await;
        assert_eq!(file.status, 200, "{path}");
        let policy = file.headers[CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
        let packed = send_with(&nobody, Method::GET, path, &[("accept-encoding", "gzip, br")], "").await;
        assert_eq!(packed.headers[CONTENT_ENCODING], "gzip");
        assert!(packed.body.len() < file.body.len() || file.body.len() < 600, "{path}");
        let tag = file.headers[ETAG].to_str().unwrap();
        let again = send_with(&nobody, Method::GET, path, &[("if-none-match", tag)], "").await;
        assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
    }
    // The first load, over the wire.
    let mut bytes = 0;
    for path in ["/", "/page.js", "/page.css", "/icon.svg"] {
        bytes += send_with(&nobody, Method::GET, path, &[("accept-encoding", "gzip")], "").await.body.len();
    }
    assert!(bytes < 150_000, "{bytes} bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_does_what_its_token_may_and_no_other_page_can_use_it() {
    let cluster = TestCluster::new();
    let controller = cluster.start("c1").await;
    controller.leads().await;
    let nobody = cluster.client(&controller, "");
    let wrong = send(&nobody, Method::POST, "/api/v1/session", "{\"token\":\"guessed\"}").await;
    assert_eq!(wrong.status, 401);
    // Nobody on the way keeps what is said to somebody, and no browser takes that for something else.
    let kept = (&wrong.headers[CACHE_CONTROL], &wrong.headers[X_CONTENT_TYPE_OPTIONS]);
    assert_eq!(kept, (&"no-store".parse().unwrap(), &"nosniff".parse().unwrap()));
    let odd = send(&nobody, Method::POST, "/api/v1/session", "{\"token\":\"a\\r\\nSet-Cookie: x=y\"}").await;
    assert_eq!((odd.status, odd.headers.contains_key(SET_COOKIE)), (401, false));
    let viewer = cookie(&cluster, &controller, "viewer").await;
    let admin = cookie(&cluster, &controller, "admin").await;
    let asked = send_with(&nobody, Method::GET, "/api/v1/session", &[("cookie", &viewer)], "").await;
    let expected = Session { name: "viewer".into(), role: Role::Viewer, expires: None };
    assert_eq!(asked.json::<Session>().unwrap(), expected);
    assert_eq!(send_with(&nobody, Method::GET, "/api/v1/hosts", &[("cookie", &viewer)], "").await.status, 200);
    assert_eq!(send(&nobody, Method::GET, "/api/v1/session", "").await.status, 401);

    // What a browser sends by itself changes nothing. The new token is used for some requests, on a busy machine, too.
    let token = "{\"name\":\"new\",\"role\":\"viewer\",\"expires_s\":15}";
    let forged = send_with(&nobody, Method::POST, "/api/v1/tokens", &[("cookie", &admin)], token).await;
    assert_eq!(forged.status, 403, "{}", String::from_utf8_lossy(&forged.body));
    let headers = |cookie| [("cookie", cookie), ("x-skein-page", "1")];
    let made = send_with(&nobody, Method::POST, "/api/v1/tokens", &headers(&admin), token).await;
    assert_eq!(made.status, 201, "{}", String::from_utf8_lossy(&made.body));
    let refused = send_with(&nobody, Method::POST, "/api/v1/tokens", &headers(&viewer), token).await;
    assert_eq!(refused.status, 403);

    // A token that ends takes its session and its streams along.
    let short = made.json::<TokenSecret>().unwrap().secret;
    let short = cookie(&cluster, &controller, &short).await;
    let events = nobody.open(Method::GET, "/api/v1/events", &[("cookie", &short)], None).await.unwrap();
    assert_eq!(events.status(), 200);
    tokio::time::timeout(LONG, events.into_body().collect()).await.expect("the stream ends").unwrap();
    assert_eq!(send_with(&nobody, Method::GET, "/api/v1/session", &[("cookie", &short)], "").await.status, 401);

    let ended = send_with(&nobody, Method::DELETE, "/api/v1/session", &headers(&admin), "").await;
    assert!(ended.headers[SET_COOKIE].to_str().unwrap().contains("Max-Age=0"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_is_watched_and_looked_at_afterwards() {
    let cluster = TestCluster::new();
    cluster.world.add_vm("alpha", "web");
    let controller = cluster.start("c1").await;
    let (operator, viewer) = (cluster.client(&controller, "operator"), cluster.client(&controller, "viewer"));
    // Loads are noted as soon as any host reports, and alpha's are looked at below.
    let _alpha = cluster.agent("alpha", &[&controller]);
    all_seen(&operator, 1, 1).await;
    let _beta = cluster.agent("beta", &[&controller]);
    all_seen(&operator, 2, 1).await;
    let host: Host = get(&viewer, "/api/v1/hosts/alpha").await;
    assert_eq!((&*host.nics[0].name, host.nics[0].send_bits_per_s), ("eth0", 7));
    let definition: VmDefinition = get(&operator, "/api/v1/vms/web/definition").await;
    assert_eq!(definition.toml, "web");
    assert_eq!(send(&viewer, Method::GET, "/api/v1/vms/web/definition", "").await.status, 403);
    let migrations = || get::<Page<MigrationView>>(&viewer, "/api/v1/migrations");
    assert!(migrations().await.items.is_empty());
    cluster.world.holds.store(true, Ordering::SeqCst);

    assert_eq!(send(&operator, Method::POST, "/api/v1/vms/web/migrate", "{\"to\":\"beta\"}").await.status, 202);
    let id = until("the migration is told", async || migrations().await.items.first().map(|of| of.id)).await;
    let live = viewer.open(Method::GET, &format!("/api/v1/migrations/{id}/live"), &[], None).await.unwrap();
    assert_eq!(live.status(), 200);
    let (mut told, mut body) = (String::new(), live.into_body());
    while let Some(frame) = tokio::time::timeout(LONG, body.frame()).await.expect("something is told") {
        told += &String::from_utf8_lossy(&frame.unwrap().into_data().unwrap_or_default());
        if ["event: source\n", "event: target\n"].iter().all(|part| told.contains(part)) {
            cluster.world.holds.store(false, Ordering::SeqCst);
        }
    }
    assert!(told.ends_with("event: end\ndata: {}\n\n"), "{told}");
    until("nobody watches any more", async || cluster.world.watched("alpha").is_empty().then_some(())).await;

    let ends: MigrationEnds = get(&viewer, &format!("/api/v1/migrations/{id}")).await;
    let (source, target) = (ends.source.unwrap(), ends.target.unwrap());
    assert_eq!((source.migration.role, target.migration.role), (End::Source, End::Target));
    assert_eq!((source.samples.len(), ends.note.as_str()), (1, ""));
    let over = migrations().await.items;
    assert_eq!((over[0].outcome, over[0].downtime_ms), (Some(Outcome::Moved), Some(12)));
    assert_eq!(send(&viewer, Method::GET, "/api/v1/migrations/0123456789abcdef", "").await.status, 404);
    assert_eq!(send(&viewer, Method::GET, "/api/v1/migrations/x", "").await.status, 400);

    let noted = until("its load is noted", async || {
        let history: History = get(&viewer, "/api/v1/hosts/alpha/history").await;
        Some(history.series["cpu_millicores"].clone()).filter(|values| !values.is_empty())
    })
    .await;
    assert_eq!(noted[0], Some(100.0));
    assert_eq!(send(&viewer, Method::GET, "/api/v1/vms/none/history", "").await.status, 404);
}
