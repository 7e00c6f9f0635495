//! A process's certificates over its life: read again when their files change, so that renewing
//! and revoking takes no restart.
//!
//! What is read is checked whole before it is used; files that do not do are told of, and what was
//! read before stays in use. Links that stand are asked about at every change.

use super::revoked::no_list;
use super::{CA_FILE, CRL_FILE, Identity, TlsError, certificate_file, key_file, peer_name};
use crate::metrics::Metrics;
use rustls::pki_types::CertificateDer;
use serde::Serialize;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use x509_parser::time::ASN1Time;

/// How often the files are looked at. Files that changed are read at the look after the one that
/// saw the change, when they are still the same: a certificate and its key are two files.
const LOOK_EVERY: Duration = Duration::from_secs(2);
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
    /// Opens links to a parent.
    pub(crate) dials: bool,
    /// The name that the parent must prove; none: any that may serve.
    pub(crate) parent_name: Option<String>,
    /// Whether there has to be a revocation list from the start.
    pub(crate) crl_required: bool,
}

/// What was read at one time, ready for new links.
pub(crate) struct Trust {
    pub(crate) identity: Identity,
    server: Option<Arc<rustls::ServerConfig>>,
    client: Option<Arc<rustls::ClientConfig>>,
}

impl Trust {
    /// For links from children.
    pub(crate) fn server(&self) -> Arc<rustls::ServerConfig> {
        self.server.clone().expect("who serves says so when the files are loaded")
    }

    /// For the link to the parent.
    pub(crate) fn client(&self) -> Arc<rustls::ClientConfig> {
        self.client.clone().expect("who dials says so when the files are loaded")
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
    /// Why the files that lie there are not in use.
    trouble: Option<String>,
    /// What was warned of last, and when.
    warned: Option<(Instant, &'static str)>,
}

/// What tells a file from what was there before: device and inode, size, and when its content and
/// its inode changed, in nanoseconds.
type Mark = (u64, u64, u64, i128, i128);
type Marks = [Option<Mark>; 4];

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
        let used = marks(&dir, &name);
        let trust = read(&dir, &name, &uses)?;
        if let Some(since) = trust.identity.own_revoked() {
            let path = trust.identity.certificate_path().to_owned();
            return Err(TlsError::Revoked { path, name, since: since.to_string() });
        }
        let current = watch::Sender::new(Arc::new(trust));
        let looked = Mutex::new(Looked { used, seen: used, ..Looked::default() });
        Ok(Arc::new(Self { dir, name, uses, current, looked }))
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
        loop {
            let status = self.status();
            metrics.certificate(status.expires_s, status.authority_expires_s);
            self.warn(&status);
            let at_once = tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => false,
                _ = asked.changed() => true,
            };
            let own = self.clone();
            // A folder that a server elsewhere holds may make the look wait.
            let _ = tokio::task::spawn_blocking(move || own.look(at_once)).await;
        }
    }

    /// Uses what lies there now, if it changed and does. Not `at_once`: if it was the same at the
    /// last look.
    pub(crate) fn look(&self, at_once: bool) {
        let marks = marks(&self.dir, &self.name);
        let mut looked = self.looked();
        if marks == looked.used {
            (looked.seen, looked.trouble) = (marks, None);
            return;
        }
        if !at_once && marks != looked.seen {
            looked.seen = marks;
            return;
        }
        looked.seen = marks;
        let next = read(&self.dir, &self.name, &self.uses)
            .and_then(|trust| self.may_follow(&trust).map(|()| trust));
        match next {
            Ok(trust) => {
                (looked.used, looked.trouble) = (marks, None);
                looked.warned = None;
                let revoked = trust.identity.revoked.as_ref().map_or(0, |revoked| revoked.len());
                let until = trust.identity.ends().map(|(own, _)| own.to_string());
                tracing::info!(name = %self.name, until, revoked, "new certificate files in use");
                self.current.send_replace(Arc::new(trust));
            }
            Err(error) => {
                let text = error.to_string();
                // Looked at again every time, since some troubles pass; told once.
                if looked.trouble.as_ref() != Some(&text) {
                    tracing::error!(%error, "certificate files are not used; those before stay");
                    looked.trouble = Some(text);
                }
            }
        }
    }

    /// Whether these files may stand where those in use stand.
    fn may_follow(&self, trust: &Trust) -> Result<(), TlsError> {
        let current = self.current();
        let Some(now) = &current.identity.revoked else {
            return Ok(());
        };
        let path = self.dir.join(CRL_FILE);
        match &trust.identity.revoked {
            None => Err(TlsError::NoList { path, why: "there was one when it was looked at last" }),
            Some(next) => next
                .may_follow(now, &trust.identity.authorities)
                .map_err(|detail| no_list(&path, detail)),
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
            revoked: trust.identity.revoked.as_ref().map(|revoked| revoked.len()),
            trouble: self.looked().trouble.clone(),
        };
        let path = trust.identity.certificate_path().display();
        let name = &self.name;
        if status.trouble.is_some() {
            return status;
        }
        if let Some(since) = trust.identity.own_revoked() {
            status.trouble = Some(format!(
                "the certificate {path} was revoked on {since}; issue a new one with `larder ca \
                 issue {name}`"
            ));
        } else if status.expires_s < warn_before(&trust.identity) {
            let words = if status.expires_s < 0 { "expired on" } else { "expires on" };
            let until = &status.expires;
            status.trouble = Some(format!(
                "the certificate {path} {words} {until}; renew it with `larder ca renew {name}`, \
                 and copy it here"
            ));
        } else if status.authority_expires_s < WARN_BEFORE {
            status.trouble = Some(format!(
                "the authority that issued {path} ends on {authority}; make a new one, and trust \
                 both for a while (docs/certificates.md)"
            ));
        }
        status
    }

    /// A line for `/readyz`, if there is something to see to.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.status().trouble.into_iter().collect()
    }

    fn warn(&self, status: &CertificateStatus) {
        let Some(trouble) = &status.trouble else {
            return;
        };
        let mut looked = self.looked();
        // Files that are not used were told of when they were looked at.
        if looked.trouble.is_some() {
            return;
        }
        let kind = if status.expires_s < 0 { "over" } else { "soon" };
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

fn read(dir: &std::path::Path, name: &str, uses: &Uses) -> Result<Trust, TlsError> {
    let identity = Identity::load(dir, name)?;
    if uses.crl_required && identity.revoked.is_none() {
        let why = "link.crl_required asks for one";
        return Err(TlsError::NoList { path: dir.join(CRL_FILE), why });
    }
    let server = uses.serves.then(|| identity.server_config()).transpose()?;
    let parent = uses.parent_name.as_deref();
    let client = uses.dials.then(|| identity.client_config(parent)).transpose()?;
    Ok(Trust { identity, server, client })
}

fn marks(dir: &std::path::Path, name: &str) -> Marks {
    let own = [certificate_file(name), key_file(name)];
    [CA_FILE, CRL_FILE, &own[0], &own[1]].map(|file| {
        let about = std::fs::metadata(dir.join(file)).ok()?;
        let nanos = |s: i64, ns: i64| i128::from(s) * 1_000_000_000 + i128::from(ns);
        let modified = nanos(about.mtime(), about.mtime_nsec());
        let changed = nanos(about.ctime(), about.ctime_nsec());
        Some((about.dev(), about.ino(), about.size(), modified, changed))
    })
}
