//! `larder ca`.

use crate::args::Common;
use crate::out;
use anyhow::Result;
use clap::{Args, Subcommand};
use comfy_table::Table;
use larder::tls::{self, Authority, Issued, Role, Standing, Which};
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub(crate) enum CaCommand {
    /// Make a new authority: ca.pem, ca-key.pem and an empty list of revoked certificates,
    /// ca-crl.pem
    Init {
        /// Where to put them
        #[arg(long, value_name = "DIR", default_value = "tls")]
        tls: PathBuf,
        /// What to call the authority
        #[arg(long, default_value = "larder")]
        name: String,
    },
    /// Issue a certificate: NAME.pem and NAME-key.pem
    Issue {
        /// The Larder name of the process or user
        name: String,
        /// What it may be: `node` connects, `relay` connects and serves, `origin` serves
        #[arg(long, default_value = "node")]
        role: Role,
        /// Folder of the authority
        #[arg(long, value_name = "DIR", default_value = "tls")]
        tls: PathBuf,
        /// Days until it expires
        #[arg(long, default_value_t = 365)]
        days: u32,
        /// A group of neighbours that it is of; may be repeated
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<String>,
    },
    /// Issue a certificate once more, with its key or a new one
    ///
    /// For the name and role in NAME.pem. Copy the new NAME.pem (and with `--new-key` NAME-key.pem)
    /// to where the old one is used: processes notice it within five seconds, or at once on
    /// SIGHUP (origin, relay, node), and use it for new links; links that stand go on. The old
    /// certificate stays good until it expires or is revoked with `larder ca revoke NAME
    /// --replaced`. The key of a certificate that was revoked is not signed again: give `--new-key`.
    Renew {
        /// The Larder name
        name: String,
        /// Make a new key: when the old one may be known to others
        #[arg(long)]
        new_key: bool,
        /// Days until it expires [default: as many as the old one had]
        #[arg(long)]
        days: Option<u32>,
        /// A group of neighbours that it is of from now on, beside those it was of; may be repeated
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<String>,
        /// Folder of the authority
        #[arg(long, value_name = "DIR", default_value = "tls")]
        tls: PathBuf,
    },
    /// Take back all certificates of a name, or one: a new edition of ca-crl.pem
    ///
    /// Copy ca-crl.pem to the folder of certificates of every origin and relay (and of nodes, which
    /// check their parents by it). They cut links of revoked certificates within five seconds of
    /// its arrival, or at once on SIGHUP, and accept no new ones. A name whose certificates were
    /// revoked may be issued a new one.
    Revoke(RevokeArgs),
    /// List all certificates that were issued, with role, end and whether they are revoked
    List {
        /// Folder of the authority
        #[arg(long, value_name = "DIR", default_value = "tls")]
        tls: PathBuf,
    },
}

#[derive(Args, Debug)]
pub(crate) struct RevokeArgs {
    /// The Larder name
    #[arg(required_unless_present = "serial")]
    name: Option<String>,
    /// Only what was replaced: all of the name but the one in NAME.pem
    #[arg(long, requires = "name")]
    replaced: bool,
    /// Only the certificate with this serial number, as `larder ca list` shows it; one that is not
    /// known there is revoked with a warning
    #[arg(long, value_name = "HEX", conflicts_with_all = ["name", "replaced"])]
    serial: Option<String>,
    /// Folder of the authority
    #[arg(long, value_name = "DIR", default_value = "tls")]
    tls: PathBuf,
}

impl RevokeArgs {
    fn which(&self) -> Which {
        match (&self.serial, &self.name) {
            (Some(serial), _) => Which::Serial(serial.clone()),
            (None, name) => {
                let name = name.clone().unwrap_or_default();
                if self.replaced { Which::Replaced(name) } else { Which::Name(name) }
            }
        }
    }
}

pub(crate) fn run(command: &CaCommand, common: &Common) -> Result<()> {
    match command {
        CaCommand::Init { tls, name } => {
            tls::init(tls, name)?;
            let folder = tls.display();
            let text = format!(
                "authority {name} made in {folder}; keep ca-key.pem on this machine only, and in a \
                 backup"
            );
            show(&json!({ "authority": name, "folder": folder.to_string() }), common, &text)
        }
        CaCommand::Issue { name, role, tls, days, groups } => {
            Authority::open(tls)?.issue_in(tls, (name, *role, groups), *days)?;
            let role = format!("{role:?}").to_lowercase();
            let folder = tls.display();
            let text = format!(
                "{folder}/{name}.pem and {folder}/{name}-key.pem issued for {days} days, role \
                 {role}{}",
                of_groups(groups)
            );
            let issued = json!({ "name": name, "role": role, "days": days, "groups": groups });
            show(&issued, common, &text)
        }
        CaCommand::Renew { name, new_key, days, groups, tls } => {
            let issued = Authority::open(tls)?.renew(name, *new_key, *days, groups)?;
            let key = if *new_key { " and its key" } else { "" };
            let text = format!(
                "{}/{name}.pem{key} issued anew, until {}{}; copy it to where {name} runs",
                tls.display(),
                date(issued.until),
                of_groups(&issued.groups)
            );
            show(&certificate(&issued, Standing::Valid), common, &text)
        }
        CaCommand::Revoke(arguments) => {
            let revoked = Authority::open(&arguments.tls)?.revoke(&arguments.which())?;
            if let Some(serial) = &revoked.unknown {
                out::fault(format!(
                    "warning: no certificate {serial} is known to have been issued here; it is \
                     revoked all the same"
                ));
            }
            let known = revoked.known.iter().map(|one| one.serial.as_str());
            let serials: Vec<&str> = known.chain(revoked.unknown.as_deref()).collect();
            let text = format!(
                "revoked: {}; copy {}/ca-crl.pem to every origin and relay: until it is there they \
                 accept it",
                serials.join(", "),
                arguments.tls.display()
            );
            let all = revoked.known.iter().map(|one| certificate(one, Standing::Revoked));
            let unknown = revoked.unknown.iter();
            let unknown = unknown.map(|one| json!({ "serial": one, "state": Standing::Revoked }));
            show(&Value::from_iter(all.chain(unknown)), common, &text)
        }
        CaCommand::List { tls } => list(&Authority::open(tls)?.list()?, common),
    }
}

/// Of which groups a certificate is, as part of a sentence.
fn of_groups(groups: &[String]) -> String {
    match groups {
        [] => String::new(),
        groups => format!(", of {}", groups.join(" and ")),
    }
}

fn list(all: &[(Issued, Standing)], common: &Common) -> Result<()> {
    if common.json {
        return out::line(Value::from_iter(
            all.iter().map(|(one, state)| certificate(one, *state)),
        ));
    }
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(["NAME", "ROLE", "GROUPS", "STATE", "UNTIL", "SERIAL"]);
    for (one, state) in all {
        let role = format!("{:?}", one.role).to_lowercase();
        let state = format!("{state:?}").to_lowercase();
        let groups = one.groups.join(",");
        table.add_row([&one.name, &role, &groups, &state, &date(one.until), &one.serial]);
    }
    out::line(table)
}

fn certificate(one: &Issued, state: Standing) -> Value {
    json!({
        "name": one.name,
        "role": one.role,
        "groups": one.groups,
        "state": state,
        "serial": one.serial,
        "from": one.from,
        "until": one.until,
    })
}

/// A day, in UTC.
fn date(seconds: i64) -> String {
    // Howard Hinnant's `civil_from_days`, for days from 1970 on.
    let days = seconds.div_euclid(86_400) + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let years = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * years + years / 4 - years / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = years + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

fn show(value: &Value, common: &Common, text: &str) -> Result<()> {
    if common.json { out::line(value) } else { out::line(text) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, day) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_772_323_199, "2026-02-28"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(super::date(seconds), day);
        }
    }
}
