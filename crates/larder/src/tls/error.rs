//! What can be wrong with certificates. Every error names the file and what to do.

use std::path::PathBuf;

/// What can be wrong with certificates.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file is not there, or cannot be read.
    #[error("{path}: {detail}; {remedy}", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The system's words.
        detail: String,
        /// What to do.
        remedy: String,
    },
    /// The authority is there already; making it anew would cut off everybody who has a
    /// certificate of it.
    #[error("{path} exists; remove it by hand to start a new authority", path = .0.display())]
    AuthorityExists(PathBuf),
    /// A file does not hold what its name says.
    #[error("{path} is no {what}: {detail}; copy it anew, or issue it again with `larder ca issue`", path = path.display())]
    Malformed {
        /// Which.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// Why it does not.
        detail: String,
    },
    /// A revocation list that cannot be used.
    #[error("{path} is no revocation list to be used: {detail}; copy ca.pem and ca-crl.pem anew from where the authority is", path = path.display())]
    BadList {
        /// Which.
        path: PathBuf,
        /// Why.
        detail: String,
    },
    /// There is no revocation list, and there was one, or one is asked for.
    #[error("{path} is missing: {why}; copy it from where the authority is", path = path.display())]
    NoList {
        /// Where it should be.
        path: PathBuf,
        /// Why there has to be one.
        why: &'static str,
    },
    /// The certificate was taken back.
    #[error("the certificate {path} was revoked on {since}; issue a new one with `larder ca issue {name}`", path = path.display())]
    Revoked {
        /// Which.
        path: PathBuf,
        /// The name in it.
        name: String,
        /// When.
        since: String,
    },
    /// The certificate to be renewed was taken back: whoever took its key would get in again.
    #[error("the certificate {path} was revoked, and its key may be known to others; give it another with `larder ca renew {name} --new-key` or `larder ca issue {name}`", path = path.display())]
    RevokedKey {
        /// Which.
        path: PathBuf,
        /// The name in it.
        name: String,
    },
    /// A certificate that is not among those that were issued here.
    #[error("{what}; see `larder ca list`")]
    NotIssued {
        /// What is not there.
        what: String,
    },
    /// The private key may be read by others.
    #[error("{path} may be read by others (mode {mode:o}); run `chmod 600 {path}`", path = path.display())]
    KeyExposed {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The key is not the certificate's.
    #[error("{key} is not the key of {certificate}; issue both again with `larder ca issue {name}`", key = key.display(), certificate = certificate.display())]
    KeyMismatch {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The name.
        name: String,
    },
    /// The certificate's time is over.
    #[error("the certificate {path} expired on {until}; issue a new one with `larder ca issue {name}`", path = path.display())]
    Expired {
        /// Which.
        path: PathBuf,
        /// The name in it.
        name: String,
        /// Its end.
        until: String,
    },
    /// The certificate's time has not come: one of the clocks is wrong.
    #[error("the certificate {path} is valid from {from} only; check this machine's clock", path = path.display())]
    NotYetValid {
        /// Which.
        path: PathBuf,
        /// Its beginning.
        from: String,
    },
    /// The certificate comes from another authority than the one beside it.
    #[error("the certificate {path} was not issued by the authority {ca}; issue it with that authority, or copy the right ca.pem here", path = path.display(), ca = ca.display())]
    Foreign {
        /// Which.
        path: PathBuf,
        /// The authority's file.
        ca: PathBuf,
    },
    /// The certificate names somebody else.
    #[error("the certificate {path} is for `{found}`, not for `{expected}`", path = path.display())]
    WrongName {
        /// Which.
        path: PathBuf,
        /// The name wanted.
        expected: String,
        /// The name in it.
        found: String,
    },
    /// The certificate is not for this use.
    #[error("the certificate {path} has no role that may {wanted}; issue it with `larder ca issue {name} --role …`", path = path.display())]
    WrongRole {
        /// Which.
        path: PathBuf,
        /// The name in it.
        name: String,
        /// What it may not do.
        wanted: &'static str,
    },
    /// The certificate is not of the group in which its holder is to be.
    #[error("the certificate {path} is not of group `{group}`, which group.name (--group) names; renew it with `larder ca renew {name} --group {group}`, and copy it here", path = path.display())]
    NotInGroup {
        /// Which.
        path: PathBuf,
        /// The name in it.
        name: String,
        /// The group.
        group: String,
    },
    /// A name that no group can have.
    #[error(
        "`{0}` is no name of a group: 1 to 63 letters, digits, `-`, `_` and `.`, beginning with a letter or digit"
    )]
    BadGroup(String),
    /// The other side's certificate does not do. Not our file: theirs.
    #[error("the certificate of {peer} is refused: {detail}")]
    PeerRefused {
        /// Its address.
        peer: String,
        /// Why, and what to do.
        detail: String,
    },
    /// The other side refuses our certificate.
    #[error("{peer} refuses the certificate {path}: {detail}", path = path.display())]
    RefusedByPeer {
        /// Its address.
        peer: String,
        /// Our file.
        path: PathBuf,
        /// Why, and what to do.
        detail: String,
    },
    /// The handshake failed for another reason.
    #[error("TLS handshake with {peer} failed: {detail}")]
    Handshake {
        /// Its address.
        peer: String,
        /// Why.
        detail: String,
    },
    /// A name that no certificate can be issued for.
    #[error(
        "`{0}` is no name: 1 to 63 letters, digits, `-`, `_` and `.`, beginning with a letter or digit"
    )]
    BadName(String),
}
