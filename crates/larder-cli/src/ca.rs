//! `larder ca`.

use crate::args::CaCommand;
use crate::out;
use anyhow::Result;
use larder::tls::{self, Authority};

pub(crate) fn run(command: &CaCommand) -> Result<()> {
    match command {
        CaCommand::Init { tls, name } => {
            tls::init(tls, name)?;
            out::line(format_args!(
                "authority {name} made in {}; keep ca-key.pem on this machine only",
                tls.display()
            ))?;
        }
        CaCommand::Issue { name, role, tls, days } => {
            Authority::open(tls)?.issue(tls, name, *role, *days)?;
            let role = format!("{role:?}").to_lowercase();
            out::line(format_args!(
                "{0}/{name}.pem and {0}/{name}-key.pem issued for {days} days, role {role}",
                tls.display()
            ))?;
        }
    }
    Ok(())
}
