//! Datagrams between the processes of a group (decision 0036): each goes once, over a connection with mutual
//! TLS to whoever listens at an address, and is lost where there is none, or no room.
//!
//! A connection begins with the address at which its dialler listens; what it carries then, both ways, are
//! datagrams, each after its length.

use super::connect::open_tls;
use super::prepare;
use crate::config::LinkConfig;
use crate::tls::{Credentials, Protocol, Proven, TlsError};
use bytes::Bytes;
use larder_core::group::membership::DATAGRAM_BYTES_MAX;
use larder_core::group::{ADDRESS_BYTES_MAX, MEMBERS_MAX};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

/// Datagrams that wait for a connection: with more the newest is lost.
const WAITING_MAX: usize = 64;
/// Connections that are open, or being opened.
const ROUTES_MAX: usize = 4 * MEMBERS_MAX;
/// Of those, the ones that are being opened.
const OPENED_MAX: usize = 64;
/// Connections to one address: both ends may open one at a time, and one may be dead and not known to be.
const OF_ADDRESS_MAX: usize = 4;
/// One over which nothing comes for so long is ended.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// Who could not be reached is not dialled again before this.
const PAUSE: Duration = Duration::from_millis(250);

/// Where datagrams of this process go out.
#[derive(Clone)]
pub(crate) struct Datagrams {
    events: mpsc::Sender<Event>,
}

/// Where connections that others opened come in.
#[derive(Clone)]
pub(crate) struct Incoming {
    events: mpsc::Sender<Event>,
    carrier: Arc<Carrier>,
}

enum Event {
    /// Send this there.
    Send(String, Bytes),
    /// Somebody who listens there opened a connection.
    Came(String, Route),
    /// One that this process was opening stands.
    Stands(String, u64),
    /// A connection has ended; whether it ever stood.
    Gone(String, u64, bool),
}

/// A connection, or one that is being opened.
struct Route {
    number: u64,
    queue: mpsc::Sender<Bytes>,
    stands: bool,
}

/// What connections share.
struct Carrier {
    own: String,
    credentials: Arc<Credentials>,
    link: LinkConfig,
    came: mpsc::Sender<(String, Bytes)>,
    events: mpsc::WeakSender<Event>,
}

impl Datagrams {
    /// Carries datagrams until the handle's task is aborted. `own`: where this process listens. What comes is
    /// given to `came`, with the address at which its sender listens, or lost if there is no room.
    pub(crate) fn start(
        own: String,
        credentials: Arc<Credentials>,
        link: LinkConfig,
        came: mpsc::Sender<(String, Bytes)>,
    ) -> (Self, Incoming, AbortHandle) {
        let (events, wanted) = mpsc::channel(4 * WAITING_MAX);
        let carrier = Carrier { own, credentials, link, came, events: events.downgrade() };
        let carrier = Arc::new(carrier);
        let task = tokio::spawn(route(carrier.clone(), wanted)).abort_handle();
        (Self { events: events.clone() }, Incoming { events, carrier }, task)
    }

    /// Sends a datagram, perhaps.
    pub(crate) fn send(&self, to: String, datagram: Bytes) {
        // Without room it is lost, as a datagram may be.
        let _ = self.events.try_send(Event::Send(to, datagram));
    }
}

impl Incoming {
    /// Carries datagrams over a connection that was opened by somebody of the group, until it ends.
    pub(super) async fn serve<S>(
        &self,
        stream: S,
        peer: &str,
        distrusts: impl Future<Output = TlsError>,
    ) where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (mut read, write) = tokio::io::split(stream);
        let limit = self.carrier.link.connect_limit.0;
        let Ok(Ok(address)) = timeout(limit, read_address(&mut read)).await else {
            tracing::debug!(peer, "a connection for datagrams did not say where it is from");
            return;
        };
        let (route, queue) = Route::new(crate::clock::random_u64(), true);
        let number = route.number;
        if self.events.send(Event::Came(address.clone(), route)).await.is_err() {
            return;
        }
        self.carrier.run((read, write), &address, queue, distrusts).await;
        let _ = self.events.send(Event::Gone(address, number, true)).await;
    }
}

impl Route {
    fn new(number: u64, stands: bool) -> (Self, mpsc::Receiver<Bytes>) {
        let (queue, waiting) = mpsc::channel(WAITING_MAX);
        (Self { number, queue, stands }, waiting)
    }
}

/// Finds a connection for each datagram: of several to an address the newest that stands.
async fn route(carrier: Arc<Carrier>, mut wanted: mpsc::Receiver<Event>) {
    let mut routes: BTreeMap<String, Vec<Route>> = BTreeMap::new();
    let mut paused: BTreeMap<String, Instant> = BTreeMap::new();
    while let Some(event) = wanted.recv().await {
        let all = || routes.values().flatten();
        let (count, opened) = (all().count(), all().filter(|route| !route.stands).count());
        match event {
            Event::Send(to, datagram) => {
                let known = routes.get(&to).map_or(&[][..], Vec::as_slice);
                let stands = known.iter().rev().find(|route| route.stands);
                if let Some(route) = stands.or(known.last()) {
                    let _ = route.queue.try_send(datagram);
                    continue;
                }
                let now = Instant::now();
                paused.retain(|_, until| *until > now);
                let full = count >= ROUTES_MAX || opened >= OPENED_MAX;
                if paused.contains_key(&to) || full {
                    continue;
                }
                let (route, queue) = Route::new(crate::clock::random_u64(), false);
                let _ = route.queue.try_send(datagram);
                tokio::spawn(dial(carrier.clone(), to.clone(), route.number, queue));
                routes.entry(to).or_default().push(route);
            }
            Event::Came(from, route) => {
                if count < ROUTES_MAX {
                    let known = routes.entry(from).or_default();
                    if known.len() >= OF_ADDRESS_MAX {
                        known.remove(0);
                    }
                    known.push(route);
                }
            }
            Event::Stands(to, number) => {
                let known = routes.get_mut(&to).into_iter().flatten();
                known.filter(|route| route.number == number).for_each(|route| route.stands = true);
            }
            Event::Gone(to, number, stood) => {
                if let Some(known) = routes.get_mut(&to) {
                    known.retain(|route| route.number != number);
                }
                routes.retain(|_, known| !known.is_empty());
                if !stood && paused.len() < ROUTES_MAX {
                    paused.insert(to, Instant::now() + PAUSE);
                }
            }
        }
    }
}

/// Opens a connection, and carries datagrams over it until it ends.
async fn dial(carrier: Arc<Carrier>, to: String, number: u64, queue: mpsc::Receiver<Bytes>) {
    let opened = timeout(carrier.link.connect_limit.0, carrier.open(&to)).await;
    let opened = opened.unwrap_or_else(|_| Err("it takes too long".into()));
    // Whoever is refused hears of it only when it thinks that the connection stands (TLS 1.3).
    let begun = Instant::now();
    let is_open = opened.is_ok();
    match opened {
        Ok((stream, distrusts)) => {
            if let Some(events) = carrier.events.upgrade() {
                let _ = events.send(Event::Stands(to.clone(), number)).await;
            }
            let halves = tokio::io::split(stream);
            carrier.run(halves, &to, queue, distrusts).await;
        }
        Err(why) => tracing::debug!(address = %to, why, "nobody of the group is reached there"),
    }
    if let Some(events) = carrier.events.upgrade() {
        let stood = is_open && begun.elapsed() >= PAUSE;
        let _ = events.send(Event::Gone(to, number, stood)).await;
    }
}

impl Carrier {
    async fn open(
        &self,
        to: &str,
    ) -> Result<
        (impl AsyncRead + AsyncWrite + Send + use<>, impl Future<Output = TlsError> + '_),
        String,
    > {
        let stream = TcpStream::connect(to).await.map_err(|e| e.to_string())?;
        prepare(&stream, self.link.write_limit.0).map_err(|e| e.to_string())?;
        let config = self.credentials.current().client(Protocol::Members);
        let mut stream = open_tls(config, stream).await.map_err(|e| e.to_string())?;
        let chain = stream.get_ref().1.peer_certificates();
        let certificate = chain.and_then(|chain| Some(chain.first()?.clone().into_owned()));
        let certificate = certificate.ok_or("it has no certificate")?;
        let peer = Proven::of(&certificate).ok_or("its certificate holds no name")?;
        if !self.credentials.in_group(&peer) {
            return Err(format!("the certificate of {} is not of the group", peer.name));
        }
        let own = frame(self.own.as_bytes());
        stream.write_all(&own).await.map_err(|e| e.to_string())?;
        let distrusts = async move { self.credentials.distrusts(&certificate).await };
        Ok((stream, distrusts))
    }

    /// Carries datagrams both ways until the connection ends.
    async fn run<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &self,
        (mut read, mut write): (R, W),
        peer: &str,
        mut queue: mpsc::Receiver<Bytes>,
        distrusts: impl Future<Output = TlsError>,
    ) {
        let reads = async {
            while let Ok(Ok(datagram)) =
                timeout(IDLE_MAX, read_frame(&mut read, DATAGRAM_BYTES_MAX)).await
            {
                // A process that is behind loses what comes, as it may.
                let _ = self.came.try_send((peer.to_owned(), datagram));
            }
        };
        let writes = async {
            while let Some(datagram) = queue.recv().await {
                let sent = async {
                    write.write_all(&frame(&datagram)).await?;
                    write.flush().await
                };
                if !matches!(timeout(self.link.write_limit.0, sent).await, Ok(Ok(()))) {
                    return;
                }
            }
        };
        tokio::select! {
            () = reads => {}
            () = writes => {}
            error = distrusts => tracing::warn!(address = peer, %error, "datagrams cut off"),
        }
    }
}

fn frame(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("datagrams and addresses are short");
    [&length.to_be_bytes()[..], bytes].concat()
}

async fn read_frame<R: AsyncRead + Unpin>(read: &mut R, max: usize) -> io::Result<Bytes> {
    let length = usize::from(read.read_u16().await?);
    if length > max {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length];
    read.read_exact(&mut bytes).await?;
    Ok(bytes.into())
}

async fn read_address<R: AsyncRead + Unpin>(read: &mut R) -> io::Result<String> {
    let bytes = read_frame(read, ADDRESS_BYTES_MAX).await?;
    let address = std::str::from_utf8(&bytes).map_err(io::Error::other)?;
    match address.is_empty() {
        true => Err(io::ErrorKind::InvalidData.into()),
        false => Ok(address.to_owned()),
    }
}

/// Any bytes as what comes over a connection for datagrams: what is taken of them is written the same. For fuzzing.
pub(crate) fn check_frames(bytes: &[u8]) {
    /// Bytes that are there are read at once.
    fn now<T>(read: impl Future<Output = io::Result<T>>) -> Option<T> {
        use std::task::{Context, Poll, Waker};
        match std::pin::pin!(read).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(read) => read.ok(),
            Poll::Pending => panic!("it waits for what is there"),
        }
    }
    let mut left = bytes;
    let Some(address) = now(read_address(&mut left)) else { return };
    assert!((1..=ADDRESS_BYTES_MAX).contains(&address.len()));
    let mut taken = frame(address.as_bytes());
    assert!(bytes.starts_with(&taken));
    let mut whole = left;
    while let Some(datagram) = now(read_frame(&mut left, DATAGRAM_BYTES_MAX)) {
        assert!(datagram.len() <= DATAGRAM_BYTES_MAX);
        taken.extend(frame(&datagram));
        whole = left;
    }
    assert_eq!([&taken, whole].concat(), bytes);
    // What ended them is no datagram.
    let length = whole.split_first_chunk().map(|(length, _)| u16::from_be_bytes(*length));
    let ended = length
        .map(usize::from)
        .is_none_or(|length| length > DATAGRAM_BYTES_MAX || length > whole.len() - 2);
    assert!(ended, "a datagram is lost");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{Authority, Role, Uses, init};
    use crate::transport::{Door, Guests, Listener};
    use std::path::PathBuf;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A folder of certificates, removed at the end.
    struct Place(PathBuf, Authority);

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    impl Place {
        fn new(name: &str) -> Self {
            let name = format!("larder-datagrams-{name}-{}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            let _ = std::fs::remove_dir_all(&dir);
            let authority = init(&dir, "test").expect("a new folder");
            Self(dir, authority)
        }

        /// The certificate of somebody who is of these groups, and takes part in `group`, or in none.
        fn who(&self, name: &str, of: &[&str], group: Option<&str>) -> Arc<Credentials> {
            let of: Vec<String> = of.iter().map(|group| (*group).to_owned()).collect();
            self.1.issue_in(&self.0, (name, Role::Node, &of), 1).expect("issues");
            let group = group.map(str::to_owned);
            let uses = Uses { dials: true, elects: true, group, ..Uses::default() };
            Credentials::load(&self.0, name, uses).expect("they do")
        }
    }

    /// Somebody who carries datagrams, where, and what comes.
    async fn carries(
        credentials: Arc<Credentials>,
    ) -> (Datagrams, String, mpsc::Receiver<(String, Bytes)>) {
        let door = Door::open("127.0.0.1:0", &credentials).await.expect("loopback");
        let address = door.address().expect("bound").to_string();
        let (guests, link) = (Guests::default(), LinkConfig::default());
        let (came, coming) = mpsc::channel(8);
        let (datagrams, incoming, _) =
            Datagrams::start(address.clone(), credentials.clone(), link.clone(), came);
        guests.let_datagrams_in(incoming);
        tokio::spawn(Listener::new(door, guests, credentials, link).run());
        (datagrams, address, coming)
    }

    async fn next(coming: &mut mpsc::Receiver<(String, Bytes)>) -> (String, Bytes) {
        timeout(PATIENCE, coming.recv()).await.expect("it comes").expect("it is carried")
    }

    /// Two processes that dialled each other at once closed each other's connection, and what both had sent was
    /// lost; a seed that was named by another text than its address cost a handshake for each datagram.
    #[tokio::test]
    async fn datagrams_come_over_whatever_connection_there_is() {
        let place = Place::new("both");
        let (a, b) = (place.who("a", &["lan"], Some("lan")), place.who("b", &["lan"], Some("lan")));
        let (to_a, (at_a, mut of_a)) = {
            let (datagrams, address, coming) = carries(a).await;
            (datagrams, (address, coming))
        };
        let (to_b, at_b, mut of_b) = carries(b).await;
        let by_name = at_b.replace("127.0.0.1", "localhost");
        for round in 0..20_u8 {
            to_a.send(at_b.clone(), Bytes::from(vec![round]));
            to_b.send(at_a.clone(), Bytes::from(vec![round]));
            assert_eq!(next(&mut of_b).await, (at_a.clone(), Bytes::from(vec![round])));
            // Over a connection that was dialled by that name it comes from there.
            let (from, datagram) = next(&mut of_a).await;
            assert!(from == at_b || from == by_name, "{from}");
            assert_eq!(datagram[..], [round]);
            to_a.send(by_name.clone(), Bytes::from(vec![100 + round]));
            assert_eq!(next(&mut of_b).await, (at_a.clone(), Bytes::from(vec![100 + round])));
        }
    }

    /// A certificate of the authority that is of no group, or of another one.
    #[tokio::test]
    async fn a_stranger_is_neither_heard_nor_told_anything() {
        let place = Place::new("strangers");
        let a = place.who("a", &["lan"], Some("lan"));
        let (datagrams, address, mut coming) = carries(a).await;
        for (name, of) in [("none", &[][..]), ("other", &["other"][..])] {
            let stranger = place.who(name, of, None);
            let connection = TcpStream::connect(&address).await.expect("it listens");
            let config = stranger.current().client(Protocol::Members);
            let mut stream = open_tls(config, connection).await.expect("the certificate is good");
            // It may be closed already.
            let said = [frame(b"127.0.0.1:1"), frame(b"some datagram")].concat();
            let _ = stream.write_all(&said).await;
            let mut rest = Vec::new();
            let ended = timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
            ended.expect("it is closed").ok();
            assert!(rest.is_empty(), "{name} is told {rest:?}");
            // The other way round: who listens at a seed's address is a stranger.
            let door = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
            datagrams.send(door.local_addr().expect("bound").to_string(), Bytes::from("secret"));
            let (connection, _) =
                timeout(PATIENCE, door.accept()).await.expect("dialled").expect("accepts");
            let config = stranger.current().server(Protocol::Members).expect("it elects");
            let accepted = tokio_rustls::TlsAcceptor::from(config).accept(connection).await;
            let mut told = Vec::new();
            if let Ok(mut stream) = accepted {
                let ended = timeout(PATIENCE, stream.read_to_end(&mut told)).await;
                ended.expect("it is closed").ok();
            }
            assert!(told.is_empty(), "{name} is told {told:?}");
        }
        assert!(coming.try_recv().is_err(), "a stranger is heard");
    }
}
