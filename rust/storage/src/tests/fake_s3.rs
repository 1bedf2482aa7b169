//! A server with the parts of S3 that the storage layer uses: conditional PUT, GET with a range, HEAD, DELETE, LIST. It
//! can also give the same answer to all requests.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use percent_encoding::percent_decode_str;

/// The checked parts of one request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: HashMap<String, String>,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into() }
    }

    pub(crate) fn error(status: u16, code: &str, message: &str) -> Self {
        Self::new(status, format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>"))
    }
}

type Handler = dyn Fn(&Request) -> Response + Send + Sync;

pub(crate) struct FakeServer {
    pub(crate) endpoint: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl FakeServer {
    pub(crate) fn start(handler: impl Fn(&Request) -> Response + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let handler: Arc<Handler> = Arc::new(handler);
        let log = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (handler, log) = (handler.clone(), log.clone());
                std::thread::spawn(move || {
                    let mut reader = BufReader::new(stream);
                    while let Some(request) = read_request(&mut reader) {
                        log.lock().unwrap().push(request.clone());
                        if write_response(reader.get_mut(), &request, &handler(&request)).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Self { endpoint, requests }
    }

    /// An S3 server with one empty bucket, `bucket`.
    pub(crate) fn s3() -> Self {
        let objects = Mutex::new(BTreeMap::new());
        Self::start(move |request| answer(&mut objects.lock().unwrap(), request))
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|&length| length > 0)?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8().unwrap().into_owned();
    let query = query.split('&').filter(|pair| !pair.is_empty());
    let query = query.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let query = query.map(|(name, value)| (name.to_owned(), decode(value))).collect();
    let path = percent_decode_str(path).decode_utf8().unwrap().into_owned();
    Some(Request { method, path, query, headers, body })
}

fn write_response(stream: &mut TcpStream, request: &Request, response: &Response) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} Status\r\n", response.status);
    for (name, value) in &response.headers {
        head += &format!("{name}: {value}\r\n");
    }
    if request.method == "HEAD" {
        return stream.write_all((head + "\r\n").as_bytes());
    }
    head += &format!("content-length: {}\r\n\r\n", response.body.len());
    stream.write_all(head.as_bytes())?;
    stream.write_all(&response.body)
}

fn answer(objects: &mut BTreeMap<String, Vec<u8>>, request: &Request) -> Response {
    let Some(key) = request.path.strip_prefix("/bucket") else {
        return Response::error(404, "NoSuchBucket", "The specified bucket does not exist");
    };
    let key = key.trim_start_matches('/').to_owned();
    let stamp = || vec![("last-modified", "Fri, 21 Nov 2025 04:00:00 GMT".to_owned()), ("etag", "\"1\"".to_owned())];
    match request.method.as_str() {
        "GET" if key.is_empty() => list(objects, &request.query),
        "PUT" if request.headers.contains_key("if-none-match") && objects.contains_key(&key) => {
            Response::error(412, "PreconditionFailed", "At least one of the pre-conditions did not hold")
        }
        "PUT" => {
            objects.insert(key, request.body.clone());
            Response { headers: stamp(), ..Response::new(200, "") }
        }
        "DELETE" => {
            objects.remove(&key);
            Response::new(204, "")
        }
        "GET" | "HEAD" => {
            let Some(object) = objects.get(&key) else {
                return Response::error(404, "NoSuchKey", "The specified key does not exist.");
            };
            let mut headers = stamp();
            let Some(range) = request.headers.get("range") else {
                if request.method == "HEAD" {
                    headers.push(("content-length", object.len().to_string()));
                }
                return Response { headers, ..Response::new(200, object.clone()) };
            };
            let (start, end) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
            let (start, end): (usize, usize) = match (start, end.parse().unwrap()) {
                // A suffix range: the last `count` bytes.
                ("", count) => (object.len().saturating_sub(count), usize::MAX),
                (start, end) => (start.parse().unwrap(), end),
            };
            if start >= object.len() {
                return Response::error(416, "InvalidRange", "The requested range is not satisfiable");
            }
            let end = end.min(object.len() - 1);
            headers.push(("content-range", format!("bytes {start}-{end}/{}", object.len())));
            Response { headers, ..Response::new(206, &object[start..=end]) }
        }
        method => Response::error(405, "MethodNotAllowed", method),
    }
}

fn list(objects: &BTreeMap<String, Vec<u8>>, query: &HashMap<String, String>) -> Response {
    let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let prefix = query.get("prefix").map_or("", String::as_str);
    let mut folders = BTreeSet::new();
    let mut body = "<ListBucketResult><IsTruncated>false</IsTruncated>".to_owned();
    for (key, object) in objects.iter().filter(|(key, _)| key.starts_with(prefix)) {
        if let Some(end) = key[prefix.len()..].find('/').filter(|_| query.contains_key("delimiter")) {
            folders.insert(key[..prefix.len() + end + 1].to_owned());
            continue;
        }
        let (key, size) = (escape(key), object.len());
        body += &format!(
            "<Contents><Key>{key}</Key><Size>{size}</Size>\
             <LastModified>2025-11-21T04:00:00.000Z</LastModified><ETag>1</ETag></Contents>"
        );
    }
    for folder in folders {
        body += &format!("<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", escape(&folder));
    }
    Response::new(200, body + "</ListBucketResult>")
}
