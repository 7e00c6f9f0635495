//! What a parent says, by words.

use crate::stage::{DOMAIN, PAGE_BYTES, VOLUME, epochs, number, page};
use larder_core::commit::PageKind;
use larder_core::commit::{Abort, Outcome};
use larder_core::id::{BootId, CommitId, DomainId, HistoryId, RequestId, Stamp, VolumeId};
use larder_core::message::{DomainInfo, Message, RequestError, VolumeInfo};
use larder_core::rights::{Denied, Right};

pub(crate) fn volume_info() -> VolumeInfo {
    VolumeInfo {
        id: VOLUME,
        domain: DOMAIN,
        name: "v".into(),
        page_bytes: PAGE_BYTES,
        root: PageKind::Slotted,
        version: Stamp::ZERO,
        pages: 1,
        bytes: 0,
        quota: None,
        room: None,
        right: None,
    }
}

/// `committed 3 unknown`, `committed 3 gone of=6`, `committed 3 7 history=2`.
pub(crate) fn committed(domain: DomainId, boot: BootId, words: &[&str]) -> Message {
    let option = |key: &str| words.iter().find_map(|word| word.strip_prefix(key));
    Message::Committed {
        domain,
        id: CommitId { boot, sequence: number(words[0]) },
        outcome: match words[1] {
            "unknown" => Outcome::Unknown,
            "lost" => Outcome::Aborted(Abort::History),
            "gone" => Outcome::Aborted(Abort::BadPage(page(option("of=").unwrap_or("1")))),
            stamp => Outcome::Committed(Stamp(number(stamp))),
        },
        history: HistoryId(option("history=").map_or(1, number).into()),
    }
}

/// What a welcome says of a domain.
pub(crate) fn offered(domain: &str) -> DomainInfo {
    DomainInfo { domain: DomainId(number(domain)), epochs: epochs(&[(1, 1)]) }
}

/// A volume in a list.
pub(crate) fn listed(name: &str) -> VolumeInfo {
    let id = VolumeId(u128::from(name.as_bytes()[0]));
    VolumeInfo { id, name: name.into(), ..volume_info() }
}

/// Why a commit is put off.
pub(crate) fn put_off(kind: &str) -> RequestError {
    match kind {
        "deferred" => RequestError::Busy("log".into()),
        "full" => RequestError::Full("no space left on disk".into()),
        "unavailable" => RequestError::Unavailable("its boot is not here".into()),
        "invalid" => RequestError::Invalid("a domain is not of this origin".into()),
        _ => RequestError::Damaged { page: page("5"), detail: "no checksum".into() },
    }
}

/// `failed 3 page=5 damaged=5` says that request 3 failed for page 5, since that is damaged.
pub(crate) fn failed(words: &[&str]) -> Message {
    let option = |key: &str| words.iter().find_map(|word| word.strip_prefix(key));
    Message::Failed {
        request: RequestId(number(words[0])),
        pages: option("page=").map(page).into_iter().collect(),
        error: match option("damaged=") {
            Some(no) => RequestError::Damaged { page: page(no), detail: "rot".into() },
            None if option("no-domain=").is_some() => {
                RequestError::NoDomain(DomainId(number(option("no-domain=").expect("seen"))))
            }
            None if words.contains(&"unknown") => RequestError::NoVolume("v".into()),
            None if words.contains(&"deleted") => RequestError::Deleted("v".into()),
            None if words.contains(&"denied") => RequestError::Denied(Box::new(Denied {
                volume: "v".into(),
                who: "node".into(),
                has: Right::None,
                needs: Right::Read,
            })),
            None => RequestError::Unavailable("disk".into()),
        },
    }
}
