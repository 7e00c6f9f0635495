//! A look whether a parent serves, without a link to it (decision 0042).

use super::connect::{Stream, Target};
use super::link::{UNBOUNDED, fill};
use crate::clock::random_u128;
use crate::config::LinkConfig;
use crate::metrics::Side;
use crate::tls::Credentials;
use bytes::BytesMut;
use larder_core::id::BootId;
use larder_core::message::{CloseReason, Message, Role, Versions};
use larder_core::wire::{LaneReceiver, LaneSender};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// How long a goodbye may take.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

/// Who looks.
pub(crate) struct Looker {
    target: Target,
    name: String,
    /// The same each time: one that was not heard to end makes room for the next.
    boot: BootId,
}

impl Looker {
    /// `name`: its own, of no link that may stand beside it.
    pub(crate) fn new(
        parent: &str,
        name: String,
        credentials: Arc<Credentials>,
        link: LinkConfig,
    ) -> Self {
        let (side, expects) = (Side::Up, String::new());
        let address = parent.to_owned();
        let target = Target { side, address, parent: 0, credentials, link, found: false, expects };
        Self { target, name, boot: BootId(random_u128()) }
    }

    /// Whether the parent welcomes this process: that a connection stands is not enough, since one that has nothing to
    /// serve takes it all the same. It takes as long as two connections may.
    pub(crate) async fn serves(&self) -> bool {
        let Ok(dialed) = self.target.connect().await else { return false };
        match dialed.stream {
            Stream::Tls(stream, _) => self.serves_over(*stream).await,
            #[cfg(feature = "simulated")]
            Stream::Pipe(pipe) => self.serves_over(pipe).await,
        }
    }

    async fn serves_over(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> bool {
        let limit = self.target.link.connect_limit.0;
        let welcomed = timeout(limit, self.welcomed(&mut stream)).await;
        if !matches!(welcomed, Ok(Ok(true))) {
            return false;
        }
        // It serves, whether it hears this or not.
        let _ = timeout(GOODBYE_LIMIT, async {
            say(&mut stream, &Message::Goodbye { reason: CloseReason::Shutdown }).await?;
            stream.shutdown().await
        })
        .await;
        true
    }

    async fn welcomed(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> io::Result<bool> {
        let versions = Versions::SPOKEN;
        let hello = Message::Hello {
            min_version: versions.oldest,
            max_version: versions.newest,
            name: self.name.clone(),
            boot: self.boot,
            role: Role::Relay,
        };
        say(stream, &hello).await?;
        let (mut lanes, mut buffer) = (LaneReceiver::new(), BytesMut::new());
        loop {
            let received = lanes.receive(&mut buffer).map_err(io::Error::other)?;
            match received {
                Some((Message::Welcome { .. }, _)) => return Ok(true),
                Some((Message::Goodbye { .. }, _)) => return Ok(false),
                Some(_) => {}
                None if stream.read_buf(&mut buffer).await? == 0 => return Ok(false),
                None => {}
            }
        }
    }
}

async fn say(stream: &mut (impl AsyncWrite + Unpin), message: &Message) -> io::Result<()> {
    let mut lanes = LaneSender::new(UNBOUNDED);
    lanes.push(message).map_err(io::Error::other)?;
    let mut bytes = Vec::new();
    fill(&mut lanes, &mut bytes, usize::MAX);
    stream.write_all(&bytes).await?;
    stream.flush().await
}
