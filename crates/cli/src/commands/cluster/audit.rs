//! `skein cluster audit`.

use std::collections::VecDeque;

use skein_api::cluster::AuditRecord;
use skein_client::ControllerClient;

use super::output::Output;
use super::screen::print_table;
use super::words::time;
use crate::commands::text::print;

/// Prints the last records of the audit log, `most` at most.
pub fn run(client: &ControllerClient, most: usize, output: Output) -> anyhow::Result<()> {
    // The log is given from its beginning.
    let mut records: VecDeque<AuditRecord> = VecDeque::new();
    for record in client.audit() {
        records.push_back(record?);
        if records.len() > most {
            records.pop_front();
        }
    }
    if output == Output::Json {
        return records.iter().try_for_each(|record| print(&(serde_json::to_string(record)? + "\n")));
    }
    if records.is_empty() {
        return print("nobody has asked for anything yet\n");
    }
    let rows: Vec<_> = records
        .into_iter()
        .map(|of| {
            // What was sent with a request would fill the line; --json has it.
            let what = of.what.split_once(" {").map_or(&*of.what, |(what, _)| what).to_owned();
            [time(of.at), of.by, of.from, what, of.status.to_string(), of.detail]
        })
        .collect();
    print_table(["AT (UTC)", "BY", "FROM", "WHAT", "STATUS", "DETAIL"], &rows)
}
