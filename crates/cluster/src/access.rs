//! Tickets, with which hosts join, and tokens, by which callers of the API are known.

use skein_api::cluster::{Role, Token, UnixMs};

use crate::answer::{Answer, RefusedKind};
use crate::records::{HostRecord, TicketRecord, TokenRecord};
use crate::state::Controller;
use crate::time::Now;
use crate::words::vms_words;

/// The longest that a ticket or a token may be asked to last, in seconds: ten years.
const EXPIRES_MAX_S: u64 = 315_360_000;
/// How long a ticket lasts unless something else is asked for, in seconds.
const TICKET_S: u64 = 3600;

impl Controller {
    pub(crate) fn new_ticket(
        &mut self,
        now: Now,
        id: &str,
        host: Option<String>,
        expires_s: Option<u64>,
        secret_sha256: String,
        by: &str,
    ) -> Answer {
        let Some(expires) = expiry(now, expires_s.or(Some(TICKET_S))) else { return bad_expiry() };
        // A host that has lost its certificate gets another by a ticket for its name.
        let is_here = |host: &&String| {
            self.tables.hosts.get(*host).is_some_and(|known| !self.may_be_signed_again(host, &known.value))
        };
        if let Some(taken) = host.as_ref().filter(is_here) {
            let cure = format!("remove it first: skein host remove {taken}");
            return Answer::conflict(
                format!("'{taken}' is a host of the cluster already, and its agent is here"),
                cure,
            );
        }
        let record = TicketRecord { host, secret_sha256, by: by.to_owned(), expires, used: None };
        self.tables.put(id, record);
        Answer::Ticket(expires)
    }

    pub(crate) fn join(
        &mut self,
        now: Now,
        (host, boot_id): (&str, Option<&str>),
        ticket: &str,
        secret_sha256: &str,
        certificate_sha256: &str,
    ) -> Answer {
        let forbidden = |message: String| {
            let cure = "get a new token where a controller runs: skein-controller ticket";
            Answer::refused(RefusedKind::Forbidden, message, cure)
        };
        let found = self.tables.tickets.get(ticket).filter(|found| found.value.secret_sha256 == secret_sha256);
        let Some(found) = found.map(|found| found.value.clone()) else {
            return forbidden("the token is not one of this cluster".into());
        };
        if let Some((by, _)) = &found.used {
            return forbidden(format!("the token was used already, by '{by}'"));
        }
        if now.wall > found.expires {
            return forbidden("the token has expired".into());
        }
        if found.host.as_ref().is_some_and(|only| only != host) {
            return forbidden(format!("the token is for another host than '{host}'"));
        }
        let known = self.tables.hosts.get(host).map(|known| known.value.clone());
        let is_for_it = found.host.is_some();
        if known.as_ref().is_some_and(|known| !is_for_it || !self.may_be_signed_again(host, known)) {
            let cure = format!(
                "take another name, or remove the host first: skein host remove {host}; if it is this host, and its \
                 certificate has ended or is lost, a token for its name does: skein-controller ticket --host {host}"
            );
            return Answer::conflict(format!("'{host}' is a host of the cluster already"), cure);
        }
        if let Some(refusal) = known.as_ref().and_then(|known| self.replacement_refusal(host, known, boot_id)) {
            return refusal;
        }
        self.tables.put(ticket, TicketRecord { used: Some((host.to_owned(), now.wall)), ..found });
        let new = || HostRecord { joined: now.wall, contact_since: now.wall, ..HostRecord::default() };
        let mut record = known.unwrap_or_else(new);
        record.sign(certificate_sha256);
        self.tables.put(host, record);
        Answer::Done
    }

    /// Refuses a host in place of one that had guests in another boot. This may be another machine: its boot does not
    /// prove that the guests have ended.
    fn replacement_refusal(&self, host: &str, known: &HostRecord, boot_id: Option<&str>) -> Option<Answer> {
        let left = self.guests_on(host).len();
        if left == 0 || known.contact.is_off() || boot_id.is_some() && known.boot_id.as_deref() == boot_id {
            return None;
        }
        let guests = vms_words(left, "was", "were");
        let message = format!(
            "{guests} on '{host}' when it was last heard of, in another boot: nobody knows whether that machine is off"
        );
        let again = "and join again with the same token";
        let cure =
            format!("if it is off, or is this one, which was booted since: skein host fence {host} --is-off, {again}");
        Some(Answer::conflict(message, self.unless_answering(host, cure)))
    }

    pub(crate) fn new_token(
        &mut self,
        now: Now,
        name: String,
        role: Role,
        expires_s: Option<u64>,
        secret_sha256: String,
    ) -> Answer {
        if self.tables.tokens.contains_key(&name) {
            return Answer::conflict(format!("there is a token '{name}' already"), "choose another name");
        }
        let expires = match expires_s {
            Some(_) => match expiry(now, expires_s) {
                Some(expires) => Some(expires),
                None => return bad_expiry(),
            },
            None => None,
        };
        let token = Token { name: name.clone(), role, created: now.wall, expires };
        self.tables.put(&name, TokenRecord { token: token.clone(), secret_sha256 });
        Answer::Token(token)
    }

    pub(crate) fn remove_token(&mut self, now: Now, name: &str) -> Answer {
        if !self.tables.tokens.contains_key(name) {
            return Answer::refused(
                RefusedKind::NotFound,
                format!("there is no token '{name}'"),
                "see skein token list",
            );
        }
        let is_admin = |token: &Token| token.role == Role::Admin && token.expires.is_none_or(|end| now.wall <= end);
        let mut admins = self.tables.tokens.iter().filter(|(_, found)| is_admin(&found.value.token));
        if admins.next().is_some_and(|(first, _)| first == name) && admins.next().is_none() {
            let message = format!("'{name}' is the last token of an admin: nobody could make another");
            return Answer::conflict(message, "make another first: skein token create NAME --role admin");
        }
        self.tables.delete::<TokenRecord>(name);
        Answer::Done
    }

    /// Returns the token that a secret belongs to, by the secret's SHA-256, unless the token has expired.
    pub fn token(&self, now: UnixMs, secret_sha256: &str) -> Option<&Token> {
        let found = self.tables.tokens.values().find(|found| found.value.secret_sha256 == secret_sha256)?;
        Some(&found.value.token).filter(|token| token.expires.is_none_or(|expires| now <= expires))
    }
}

fn expiry(now: Now, expires_s: Option<u64>) -> Option<UnixMs> {
    expires_s.filter(|seconds| (1..=EXPIRES_MAX_S).contains(seconds)).map(|seconds| now.in_ms(seconds * 1000))
}

fn bad_expiry() -> Answer {
    Answer::refused(
        RefusedKind::Invalid,
        format!("expires_s is not within 1 to {EXPIRES_MAX_S}"),
        "choose another time",
    )
}
