//! Clock of the store: the time at which it answered a request.
//!
//! A machine cannot measure how long it was suspended, because its clocks stop with it. A remote store sends a date
//! with each answer (`Date`, in whole seconds), so the time between two answers is measured by these dates.

use std::cell::Cell;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use tokio::task_local;

use crate::reachability::Reach;

/// Precision of the dates. They have whole seconds, and the clocks of the store's machines differ, so two dates that
/// differ by no more than this may mean the same time.
pub const APART_MILLIS: u64 = 1000;

task_local! {
    static HEARD: Cell<Heard>;
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Heard {
    #[default]
    Nothing,
    Dates {
        first_millis: u64,
        last_millis: u64,
    },
    /// An answer without a date.
    Undated,
}

impl Heard {
    fn and(self, other: Heard) -> Heard {
        match (self, other) {
            (Heard::Nothing, heard) | (heard, Heard::Nothing) => heard,
            (Heard::Dates { first_millis, last_millis }, Heard::Dates { first_millis: first, last_millis: last }) => {
                Heard::Dates { first_millis: first_millis.min(first), last_millis: last_millis.max(last) }
            }
            (Heard::Undated, _) | (_, Heard::Undated) => Heard::Undated,
        }
    }
}

/// Time of the store's answer to a request by the store's clock, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreMoment(u64);

impl StoreMoment {
    /// Whether both moments may be the same, within the precision of the dates.
    pub fn is_close_to(self, other: StoreMoment) -> bool {
        self.0.abs_diff(other.0) <= APART_MILLIS
    }

    /// Time since another moment; 0 if the other one is later.
    pub fn millis_since(self, other: StoreMoment) -> u64 {
        self.0.saturating_sub(other.0)
    }
}

/// Runs `requests` and returns the time at which the store answered them. `None` if there was no request, if an answer
/// had no date, or if the dates differ by more than the precision.
pub async fn dated<T>(requests: impl Future<Output = T>) -> (T, Option<StoreMoment>) {
    let (result, heard) = listen(requests).await;
    let moment = match heard {
        Heard::Dates { first_millis, last_millis } if last_millis - first_millis <= APART_MILLIS => {
            Some(StoreMoment(first_millis))
        }
        _ => None,
    };
    (result, moment)
}

/// Runs `requests` and returns the time of the store's last answer.
pub async fn dated_last<T>(requests: impl Future<Output = T>) -> (T, Option<StoreMoment>) {
    let (result, heard) = listen(requests).await;
    let moment = match heard {
        Heard::Dates { last_millis, .. } => Some(StoreMoment(last_millis)),
        Heard::Nothing | Heard::Undated => None,
    };
    (result, moment)
}

async fn listen<T>(requests: impl Future<Output = T>) -> (T, Heard) {
    let (result, heard) = HEARD
        .scope(Cell::default(), async {
            let result = requests.await;
            (result, HEARD.with(Cell::get))
        })
        .await;
    hear(heard);
    (result, heard)
}

/// Records the date of an answer, for the enclosing [`dated`].
pub fn answered(millis: Option<u64>) {
    hear(millis.map_or(Heard::Undated, |millis| Heard::Dates { first_millis: millis, last_millis: millis }));
}

fn hear(heard: Heard) {
    // Outside of `dated` there is no cell to set.
    let _ = HEARD.try_with(|before| before.set(before.get().and(heard)));
}

/// Makes HTTP clients that record the date of each answer, and whether the store answered.
#[derive(Debug)]
pub(crate) struct ListeningConnector(pub(crate) Arc<Reach>);

impl HttpConnector for ListeningConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(ListeningClient(client, self.0.clone())))
    }
}

#[derive(Debug)]
struct ListeningClient(HttpClient, Arc<Reach>);

#[async_trait]
impl HttpService for ListeningClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.0.execute(request).await.inspect_err(|error| self.1.failed(error.kind()))?;
        self.1.answered();
        let date = response.headers().get("date").and_then(|date| date.to_str().ok());
        answered(date.and_then(millis_of));
        Ok(response)
    }
}

fn millis_of(date: &str) -> Option<u64> {
    let time = httpdate::parse_http_date(date).ok()?;
    u64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

#[cfg(test)]
mod tests;
