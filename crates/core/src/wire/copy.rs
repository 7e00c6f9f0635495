//! Copies of volumes: the question and its answer.

use super::WireError;
use super::head::{self, id_field, id_of, stamp_of};
use super::message::{Body, kind};
use super::packed::{self, Packed};
use crate::id::{HistoryId, PageId, PageNo, RequestId, VolumeId};
use crate::message::{CopyAnswer, CopyAsk, CopyCursor, CopyPart, Message, PageBody, PinId};
use bytes::Bytes;

pub(super) fn body(message: &Message) -> Body<'_> {
    match message {
        Message::CopyPages { request, ask } => {
            let head = head::CopyPages {
                request: request.0,
                volume: id_field(ask.volume.0),
                history: id_field(ask.history.0),
                since: ask.since.0,
                pin: ask.pin.map(|pin| id_field(pin.0)),
                cursor: ask.cursor.map(cursor_head),
            };
            Body::plain(kind::COPY_PAGES, &head)
        }
        Message::Copied { request, answer } => {
            let head = head::Copied {
                request: request.0,
                history: id_field(answer.history.0),
                through: answer.through.0,
                next_page: answer.next_page.0,
                part: part_number(answer.part),
                cursor: answer.cursor.map(cursor_head),
                answers: Bytes::new(),
            };
            Body::with(kind::COPIED, &head, Packed::Answers(&answer.pages))
        }
        _ => unreachable!("the caller sorts kinds"),
    }
}

pub(super) fn message(kind: u32, body: Bytes) -> Result<Message, WireError> {
    if kind == kind::COPY_PAGES {
        let head: head::CopyPages = head::read(body)?;
        let ask = CopyAsk {
            volume: VolumeId(id_of(&head.volume)?),
            history: HistoryId(id_of(&head.history)?),
            since: stamp_of(head.since)?,
            cursor: head.cursor.map(cursor_of).transpose()?,
            pin: head.pin.map(|pin| id_of(&pin).map(PinId)).transpose()?,
        };
        return Ok(Message::CopyPages { request: RequestId(head.request), ask });
    }
    let head: head::Copied = head::read(body)?;
    let pages = packed::read_answers(head.answers)?;
    let is_copy = |body: &PageBody| matches!(body, PageBody::Data(_) | PageBody::Absent);
    if !pages.iter().all(|page| is_copy(&page.body)) {
        return Err(WireError::Malformed("a copied page without its bytes"));
    }
    let answer = CopyAnswer {
        history: HistoryId(id_of(&head.history)?),
        through: stamp_of(head.through)?,
        next_page: number_of(head.next_page)?,
        pages,
        part: part_of(head.part)?,
        cursor: head.cursor.map(cursor_of).transpose()?,
    };
    Ok(Message::Copied { request: RequestId(head.request), answer })
}

fn part_number(part: CopyPart) -> u32 {
    match part {
        CopyPart::Recent => 1,
        CopyPart::Index => 2,
        CopyPart::Kept => 3,
    }
}

fn part_of(number: u32) -> Result<CopyPart, WireError> {
    match number {
        1 => Ok(CopyPart::Recent),
        2 => Ok(CopyPart::Index),
        3 => Ok(CopyPart::Kept),
        _ => Err(WireError::Malformed("no part of a copy")),
    }
}

/// A page number, or the one after the last.
fn number_of(number: u64) -> Result<PageNo, WireError> {
    if number > PageNo::LIMIT {
        return Err(WireError::Malformed("no page number"));
    }
    Ok(PageNo(number))
}

fn cursor_head(cursor: CopyCursor) -> head::CopyAt {
    head::CopyAt {
        until: cursor.until.0,
        part: part_number(cursor.part),
        stamp: cursor.stamp.0,
        volume: id_field(cursor.page.volume.0),
        page: cursor.page.page.0,
    }
}

fn cursor_of(head: head::CopyAt) -> Result<CopyCursor, WireError> {
    Ok(CopyCursor {
        until: stamp_of(head.until)?,
        part: part_of(head.part)?,
        stamp: stamp_of(head.stamp)?,
        page: PageId { volume: VolumeId(id_of(&head.volume)?), page: number_of(head.page)? },
    })
}
