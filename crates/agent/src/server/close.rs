//! Answers that the host is about to be switched off, or is updated.

use std::process::{Command, Stdio};
use std::time::Duration;

use skein_api::{Reply, UpdateHow};
use tracing::warn;

use super::refusal::{Answered, refusal};
use super::request_server::RequestServer;

impl RequestServer {
    /// Takes no guests for a time, if there is none; and has the host shut down then, if that is asked for. `stays_on`:
    /// a person says that the host is not booted any more by what an update had ordered.
    pub(super) fn host_close(&self, for_s: u64, power_off: bool, stays_on: bool) -> Answered<Reply> {
        if power_off && self.power_off.is_empty() {
            let cure = "start it with --power-off COMMAND; or skein property set host NAME sleep=device";
            return Err(Box::new(refusal("this host's agent has no command that shuts the host down", cure)));
        }
        if stays_on && for_s == 0 {
            self.updates.forget_boot().map_err(|(message, cure)| Box::new(refusal(message, cure)))?;
        }
        self.close(for_s)?;
        let Some(program) = self.power_off.first().filter(|_| power_off) else { return Ok(Reply::Done) };
        let mut command = Command::new(program);
        command.args(&self.power_off[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        warn!("this host is shut down, as a controller asks for: {}", program.display());
        let failed = |error: std::io::Error| refusal(format!("{}: {error}", program.display()), "see --power-off");
        let mut child = command.spawn().map_err(failed)?;
        // Somebody has to wait for it; if there is no thread, that is at the agent's end.
        let _ = std::thread::Builder::new().name("power-off".into()).spawn(move || child.wait());
        Ok(Reply::Done)
    }

    /// Brings the host up to date, once for each id, if there is no guest; or only says how far that is.
    pub(super) fn host_update(&self, id: &str, how: UpdateHow, order: bool, for_s: u64) -> Answered<Reply> {
        if !order {
            return Ok(Reply::HostUpdate(self.updates.look(id)));
        }
        let close = || self.rooms.close(Duration::from_secs(for_s));
        let view = self.updates.order(id, how, close).map_err(|(message, cure)| Box::new(refusal(message, cure)))?;
        Ok(Reply::HostUpdate(view))
    }

    fn close(&self, for_s: u64) -> Answered<()> {
        if for_s == 0 {
            return self.rooms.open().map_err(|why| Box::new(refusal(why, "wait until that is over, or boot it")));
        }
        let time = Duration::from_secs(for_s);
        self.rooms.close(time).map_err(|why| Box::new(refusal(why, "the host stays on: empty it first")))
    }
}
