//! A process's certificates over its life: read again when their files change, so that renewing
//! and revoking takes no restart.
//!
//! There are two parts: whom to trust (`ca.pem` and `ca-crl.pem`), and the own certificate with its
//! key. Each is checked whole before it is used. A part that does not do is told of, and stays as it
//! was read before; the other is used all the same. Links that stand are asked about at every
//! change.

use super::revoked::no_list;
use super::{
    CA_FILE, CRL_FILE, Identity, Own, Protocol, Proven, TlsError, Trusted, certificate_file,
    key_file, peer_name,
};
use crate::metrics::Metrics;
use rustls::pki_types::CertificateDer;
use serde::Serialize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use x509_parser::time::ASN1Time;

/// How often the files are looked at. Files that changed are read at the look after the one that
/// saw the change, when they are still the same: a certificate and its key are two files.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A look that takes longer is told of: the folder may be held by a server that does not answer.
const LOOK_LIMIT: Duration = Duration::from_secs(10);
/// An own certificate is warned of this long before its end, or when a third of its time is left,
/// if that is later.
const WARN_BEFORE: i64 = 30 * 86_400;
/// A warning is logged again after this long.
const WARN_EVERY: Duration = Duration::from_secs(86_400);

/// Counts how often all credentials of this process were told to look at their files.
static ASKED: LazyLock<watch::Sender<u64>> = LazyLock::new(|| watch::Sender::new(0));

/// Has every server and node of this process look at its certificate files at once: for SIGHUP.
pub fn look_again() {
    ASKED.send_modify(|times| *times += 1);
}

/// What a process does with its certificate.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    /// Serves links.
    pub(crate) serves: bool,
    /// Serves links if the certificate lets it.
    pub(crate) may_serve: bool,
    /// Opens links to a parent.
    pub(crate) dials: bool,
    /// The name that the parent must prove; none: any that may serve.
    pub(crate) parent_name: Option<String>,
    /// Whether there has to be a revocation list from the start.
    pub(crate) crl_required: bool,
    /// The group that the certificate must be of; none: it is in none.
    pub(crate) group: Option<String>,
    /// Has links to neighbours of that group.
    pub(crate) neighbours: bool,
    /// Finds out with others of the group who is its redirector.
    pub(crate) elects: bool,
    /// Has links to other origins.
    pub(crate) origins: bool,
}

/// What links are served with, and what they are opened with; what is not needed is not there.
type Configs = (Option<Arc<rustls::ServerConfig>>, Option<Arc<rustls::ClientConfig>>);

/// What was read, ready for new links.
pub(crate) struct Trust {
    pub(crate) identity: Identity,
    /// From children, and to the parent.
    tree: Configs,
    /// From neighbours, and to them.
    neighbours: Configs,
    /// Datagrams of the group's membership.
    members: Configs,
    /// From other origins, and to them.
    origins: Configs,
    /// To a redirector that the group has found: whatever its name is, it must be of the group.
    redirector: Option<Arc<rustls::ClientConfig>>,
}

impl Trust {
    /// Makes ready for its uses. An error if the certificate and its key do not fit together, or
    /// have the wrong role, or group.
    fn new(identity: Identity, uses: &Uses) -> Result<Self, TlsError> {
        uses.group.iter().try_for_each(|group| identity.check_group(group))?;
        let serves = uses.serves || uses.may_serve && identity.may_serve();
        let server = serves.then(|| identity.server_config()).transpose()?;
        let parent = uses.parent_name.as_deref();
        let client = uses.dials.then(|| identity.client_config(parent)).transpose()?;
        let of_members = |uses: bool, protocol: Protocol| {
            let configs = uses.then(|| identity.member_configs(protocol)).transpose()?;
            Ok::<Configs, TlsError>(configs.unzip())
        };
        let neighbours = of_members(uses.neighbours, Protocol::Neighbours)?;
        let members = of_members(uses.elects, Protocol::Members)?;
        let redirector = uses.elects.then(|| identity.client_config(None)).transpose()?;
        let origins = uses.origins.then(|| identity.origin_configs()).transpose()?.unzip();
        Ok(Self { identity, tree: (server, client), neighbours, members, origins, redirector })
    }

    fn configs(&self, protocol: Protocol) -> &Configs {
        match protocol {
            Protocol::Tree => &self.tree,
            Protocol::Neighbours => &self.neighbours,
            Protocol::Members => &self.members,
            Protocol::Origins => &self.origins,
        }
    }

    /// For what comes in; none: the certificate that is read now does not let it in.
    pub(crate) fn server(&self, protocol: Protocol) -> Option<Arc<rustls::ServerConfig>> {
        self.configs(protocol).0.clone()
    }

    /// For what is dialled.
    pub(crate) fn client(&self, protocol: Protocol) -> Arc<rustls::ClientConfig> {
        let configs = self.configs(protocol);
        configs.1.clone().expect("who dials says so when the files are loaded")
    }

    /// For the link to a redirector that the group has found.
    pub(crate) fn redirector(&self) -> Arc<rustls::ClientConfig> {
        self.redirector.clone().expect("who elects says so when the files are loaded")
    }
}

/// A process's certificates, as they are now.
pub(crate) struct Credentials {
    dir: PathBuf,
    name: String,
    uses: Uses,
    current: watch::Sender<Arc<Trust>>,
    looked: Mutex<Looked>,
}

#[derive(Default)]
struct Looked {
    /// The files that are in use.
    used: Marks,
    /// The files as the last look found them.
    seen: Marks,
    /// Why files that lie there are not in use.
    troubles: Troubles,
    /// The look does not end.
    held_up: bool,
    /// What was warned of last, and when.
    warned: Option<(Instant, &'static str)>,
}

/// Why a part of the files is not in use.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Troubles {
    /// `ca.pem` and `ca-crl.pem`.
    trusted: Option<TlsError>,
    /// The own certificate and its key.
    own: Option<TlsError>,
}

impl Troubles {
    /// A line a part.
    fn lines(&self) -> impl Iterator<Item = String> {
        let trusted = self.trusted.as_ref().map(|error| {
            format!(
                "{error}. The ca.pem and ca-crl.pem that lie there are not in force: what was read \
                 before is"
            )
        });
        let list = match self.trusted {
            Some(_) => "",
            None => "; ca.pem and ca-crl.pem are in force as they lie there",
        };
        let own = self.own.as_ref().map(|error| {
            format!("{error}. The certificate that was read before stays in use{list}")
        });
        trusted.into_iter().chain(own)
    }
}

/// What tells a file from what was there before: device and inode, size, and when its content and
/// its inode changed, in nanoseconds.
type Mark = (u64, u64, u64, i128, i128);

/// The files of each part.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Marks {
    trusted: [Option<Mark>; 2],
    own: [Option<Mark>; 2],
}

/// What a process tells of its own certificate.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CertificateStatus {
    /// When it ends.
    pub expires: String,
    /// Seconds until then; negative: it has expired.
    pub expires_s: i64,
    /// Seconds until the authority that issued it ends.
    pub authority_expires_s: i64,
    /// How many certificates the revocation list names; none: there is no list.
    pub revoked: Option<usize>,
    /// What an operator should see to.
    pub trouble: Option<String>,
}

impl Credentials {
    /// Reads and checks the files of `name` in `dir`.
    pub(crate) fn load(
        dir: impl Into<PathBuf>,
        name: &str,
        uses: Uses,
    ) -> Result<Arc<Self>, TlsError> {
        let (dir, name) = (dir.into(), name.to_owned());
        #[cfg(feature = "simulated")]
        if let Some(identity) = crate::simulated::identity(&name) {
            // Pipes have no TLS.
            let (tree, neighbours, members) = <(Configs, Configs, Configs)>::default();
            let origins = (None, None);
            let trust =
                Trust { identity: identity?, tree, neighbours, members, origins, redirector: None };
            let (current, looked) = (watch::Sender::new(Arc::new(trust)), Mutex::default());
            return Ok(Arc::new(Self { dir, name, uses, current, looked }));
        }
        let used = marks(&dir, &name);
        let identity = Identity::load(&dir, &name)?;
        check_required(&identity.trusted, &dir, &uses)?;
        let trust = Trust::new(identity, &uses)?;
        if let Some(since) = trust.identity.own_revoked() {
            let path = trust.identity.certificate_path().to_owned();
            return Err(TlsError::Revoked { path, name, since: since.to_string() });
        }
        let current = watch::Sender::new(Arc::new(trust));
        let looked = Mutex::new(Looked { used, seen: used, ..Looked::default() });
        Ok(Arc::new(Self { dir, name, uses, current, looked }))
    }

    /// Whose they are.
    #[cfg(feature = "simulated")]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether links are served with them.
    #[cfg(feature = "simulated")]
    pub(crate) fn serves(&self) -> bool {
        self.uses.serves
    }

    /// Whether somebody's certificate is of the group that this process is in.
    pub(crate) fn in_group(&self, peer: &Proven) -> bool {
        self.uses.group.as_ref().is_some_and(|group| peer.is_of(group))
    }

    /// Whether this process is a member of a group.
    pub(crate) fn has_neighbours(&self) -> bool {
        self.uses.neighbours
    }

    /// For new links.
    pub(crate) fn current(&self) -> Arc<Trust> {
        self.current.borrow().clone()
    }

    /// Waits until other files are in use than at the call.
    pub(crate) async fn changed(&self) {
        let mut changes = self.current.subscribe();
        if changes.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Waits until a peer's certificate does no more, and says why. Never ends for one that does.
    pub(crate) async fn distrusts(&self, certificate: &CertificateDer<'_>) -> TlsError {
        let mut changes = self.current.subscribe();
        loop {
            let trust = changes.borrow_and_update().clone();
            if let Err(detail) = trust.identity.still_trusts(certificate) {
                let peer = peer_name(certificate).unwrap_or_default();
                return TlsError::PeerRefused { peer, detail };
            }
            if changes.changed().await.is_err() {
                std::future::pending().await
            }
        }
    }

    /// Looks at the files every few seconds, and when [`look_again`] is called, until dropped.
    pub(crate) async fn watch(self: Arc<Self>, metrics: Arc<Metrics>) {
        let mut asked = ASKED.subscribe();
        #[cfg(feature = "simulated")]
        if crate::simulated::world().is_some() {
            // There are no files, and looking at any would hold virtual time up.
            return;
        }
        loop {
            let status = self.status();
            metrics.certificate(status.expires_s, status.authority_expires_s);
            self.warn(&status);
            let at_once = tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => false,
                _ = asked.changed() => true,
            };
            let own = self.clone();
            let mut look = tokio::task::spawn_blocking(move || own.look(at_once));
            // Never two at a time: what one finds must not be replaced by what another found before.
            while tokio::time::timeout(LOOK_LIMIT, &mut look).await.is_err() {
                if !std::mem::replace(&mut self.looked().held_up, true) {
                    tracing::error!("{}", self.held_up());
                }
                let status = self.status();
                metrics.certificate(status.expires_s, status.authority_expires_s);
            }
            self.looked().held_up = false;
        }
    }

    fn held_up(&self) -> String {
        format!(
            "the folder of certificates {} does not answer; what was read before stays in use",
            self.dir.display()
        )
    }

    /// Uses what lies there now, if it changed and does. Not `at_once`: if it was the same at the
    /// last look. Files are read without holding up who asks for the status.
    pub(crate) fn look(&self, at_once: bool) {
        let marks = marks(&self.dir, &self.name);
        let used = {
            let mut looked = self.looked();
            let before = std::mem::replace(&mut looked.seen, marks);
            if marks == looked.used {
                looked.troubles = Troubles::default();
                return;
            }
            if !at_once && marks != before {
                return;
            }
            looked.used
        };
        let (next, troubles) = self.read(marks.trusted != used.trusted, marks.own != used.own);
        let mut looked = self.looked();
        if troubles.trusted.is_none() {
            looked.used.trusted = marks.trusted;
        }
        if troubles.own.is_none() {
            looked.used.own = marks.own;
        }
        // Looked at again every time, since some troubles pass; told once.
        if looked.troubles != troubles {
            for line in troubles.lines() {
                tracing::error!(name = %self.name, "certificate files are not used: {line}");
            }
            looked.troubles = troubles;
        }
        if let Some(trust) = next {
            looked.warned = None;
            drop(looked);
            let revoked = trust.identity.trusted.revoked.as_ref().map_or(0, |list| list.len());
            let until = trust.identity.ends().map(|(own, _)| own.to_string());
            tracing::info!(name = %self.name, until, revoked, "new certificate files in use");
            self.current.send_replace(Arc::new(trust));
        }
    }

    /// Reads the parts that changed: what is to be used from now on, if anything changes, and what
    /// does not do.
    fn read(&self, new_trusted: bool, new_own: bool) -> (Option<Trust>, Troubles) {
        let current = self.current();
        let (mut trusted, mut own) = (None, None);
        let mut troubles = Troubles::default();
        if new_trusted {
            let read = Trusted::load(&self.dir);
            match read.and_then(|next| self.may_follow(&next).map(|()| next)) {
                Ok(next) => trusted = Some(Arc::new(next)),
                Err(error) => troubles.trusted = Some(error),
            }
        }
        if new_own {
            match Own::load(&self.dir, &self.name) {
                Ok(next) => own = Some(Arc::new(next)),
                Err(error) => troubles.own = Some(error),
            }
        }
        let before = &current.identity;
        let ready = |own: &Arc<Own>, trusted: &Arc<Trusted>| {
            let identity = Identity::new(&self.name, own.clone(), trusted.clone())?;
            Trust::new(identity, &self.uses)
        };
        if let Some(own) = &own {
            match ready(own, trusted.as_ref().unwrap_or(&before.trusted)) {
                Ok(trust) => return (Some(trust), troubles),
                Err(error) => troubles.own = Some(error),
            }
        }
        let Some(trusted) = trusted else {
            return (None, troubles);
        };
        // The list must hold, whatever is wrong with the own certificate that came with it.
        if trusted.has_issued(&before.own.chain[0]) {
            let identity = Identity::unchecked(&self.name, before.own.clone(), trusted);
            return match Trust::new(identity, &self.uses) {
                Ok(trust) => (Some(trust), troubles),
                Err(error) => (None, Troubles { trusted: Some(error), ..troubles }),
            };
        }
        // With these authorities nobody would believe the certificate in use.
        let (path, ca) = (before.own.certificate_path.clone(), trusted.path.clone());
        troubles.trusted = Some(TlsError::Foreign { path, ca });
        match own.map(|own| ready(&own, &before.trusted)) {
            Some(Ok(trust)) => (Some(trust), Troubles { own: None, ..troubles }),
            _ => (None, troubles),
        }
    }

    /// Whether these authorities and this list may stand where those in use stand.
    fn may_follow(&self, next: &Trusted) -> Result<(), TlsError> {
        check_required(next, &self.dir, &self.uses)?;
        let current = self.current();
        let Some(now) = &current.identity.trusted.revoked else {
            return Ok(());
        };
        let path = self.dir.join(CRL_FILE);
        match &next.revoked {
            None => Err(TlsError::NoList { path, why: "there was one when it was looked at last" }),
            Some(list) => {
                list.may_follow(now, &next.authorities).map_err(|detail| no_list(&path, detail))
            }
        }
    }

    /// What is told to operators.
    pub(crate) fn status(&self) -> CertificateStatus {
        let trust = self.current();
        let now = ASN1Time::now().timestamp();
        let (own, authority) = trust.identity.ends().unwrap_or((ASN1Time::now(), ASN1Time::now()));
        let mut status = CertificateStatus {
            expires: own.to_string(),
            expires_s: own.timestamp() - now,
            authority_expires_s: authority.timestamp() - now,
            revoked: trust.identity.trusted.revoked.as_ref().map(|revoked| revoked.len()),
            trouble: None,
        };
        let mut lines = self.file_troubles();
        lines.extend(self.own_trouble(&trust, &status, authority));
        status.trouble = (!lines.is_empty()).then(|| lines.join("; besides: "));
        status
    }

    /// What is wrong with the files that lie there.
    fn file_troubles(&self) -> Vec<String> {
        let (troubles, held_up) = {
            let looked = self.looked();
            (looked.troubles.clone(), looked.held_up)
        };
        let held_up = held_up.then(|| self.held_up());
        held_up.into_iter().chain(troubles.lines()).collect()
    }

    /// What is wrong, or soon will be, with the certificate in use.
    fn own_trouble(
        &self,
        trust: &Trust,
        status: &CertificateStatus,
        authority: ASN1Time,
    ) -> Option<String> {
        let path = trust.identity.certificate_path().display();
        let name = &self.name;
        if let Some(since) = trust.identity.own_revoked() {
            return Some(format!(
                "the certificate {path} was revoked on {since}; issue a new one with `larder ca \
                 issue {name}`"
            ));
        }
        if status.expires_s < warn_before(&trust.identity) {
            let words = if status.expires_s < 0 { "expired on" } else { "expires on" };
            let until = &status.expires;
            return Some(format!(
                "the certificate {path} {words} {until}; renew it with `larder ca renew {name}`, \
                 and copy it here"
            ));
        }
        (status.authority_expires_s < WARN_BEFORE).then(|| {
            format!(
                "the authority that issued {path} ends on {authority}; make a new one, and trust \
                 both for a while (docs/certificates.md)"
            )
        })
    }

    /// A line for `/readyz`, if there is something to see to.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.status().trouble.into_iter().collect()
    }

    fn warn(&self, status: &CertificateStatus) {
        let Some(trouble) = &status.trouble else {
            return;
        };
        let kind = if status.expires_s < 0 { "over" } else { "soon" };
        let mut looked = self.looked();
        // Files that are not used were told of when they were looked at.
        if looked.troubles != Troubles::default() && kind == "soon" {
            return;
        }
        let told = |(at, what): (Instant, &str)| what == kind && at.elapsed() < WARN_EVERY;
        if looked.warned.is_some_and(told) {
            return;
        }
        looked.warned = Some((Instant::now(), kind));
        tracing::warn!("{trouble}");
    }

    fn looked(&self) -> MutexGuard<'_, Looked> {
        // Whole between any two of its changes.
        self.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Seconds before its end from which a certificate is warned of.
fn warn_before(identity: &Identity) -> i64 {
    identity.lifetime().map_or(WARN_BEFORE, |lifetime| WARN_BEFORE.min(lifetime / 3))
}

/// Whether there is a list where one is asked for.
fn check_required(trusted: &Trusted, dir: &Path, uses: &Uses) -> Result<(), TlsError> {
    if uses.crl_required && trusted.revoked.is_none() {
        let why = "link.crl_required asks for one";
        return Err(TlsError::NoList { path: dir.join(CRL_FILE), why });
    }
    Ok(())
}

fn marks(dir: &Path, name: &str) -> Marks {
    let mark = |file: &str| {
        let about = std::fs::metadata(dir.join(file)).ok()?;
        let nanos = |s: i64, ns: i64| i128::from(s) * 1_000_000_000 + i128::from(ns);
        let modified = nanos(about.mtime(), about.mtime_nsec());
        let changed = nanos(about.ctime(), about.ctime_nsec());
        Some((about.dev(), about.ino(), about.size(), modified, changed))
    };
    Marks {
        trusted: [mark(CA_FILE), mark(CRL_FILE)],
        own: [mark(&certificate_file(name)), mark(&key_file(name))],
    }
}
