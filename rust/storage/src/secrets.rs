//! Secret values of storage options, which no error message may contain.

/// Values that no message may contain.
#[derive(Clone, Default)]
pub(crate) struct Secrets(Vec<String>);

impl Secrets {
    /// Minimum length of a value that is redacted. Shorter values may also be part of ordinary text.
    const MIN_LENGTH: usize = 4;

    pub(crate) fn add(&mut self, secret: &str) {
        // A key file is JSON, and an error could quote a part of it.
        if let Ok(json) = serde_json::from_str::<serde_json::Value>(secret) {
            self.add_strings(&json);
        }
        // A shared access signature is a query string; its signature is secret, both encoded and decoded.
        for pair in secret.split(['?', '&']) {
            if let Some(signature) = pair.strip_prefix("sig=") {
                self.add_one(signature);
                self.add_one(&percent_encoding::percent_decode_str(signature).decode_utf8_lossy());
            }
        }
        self.add_one(secret);
    }

    fn add_strings(&mut self, json: &serde_json::Value) {
        match json {
            serde_json::Value::String(text) => self.add_one(text),
            serde_json::Value::Array(items) => items.iter().for_each(|item| self.add_strings(item)),
            serde_json::Value::Object(fields) => fields.values().for_each(|field| self.add_strings(field)),
            serde_json::Value::Null | serde_json::Value::Bool(_) | serde_json::Value::Number(_) => {}
        }
    }

    fn add_one(&mut self, secret: &str) {
        if secret.len() >= Self::MIN_LENGTH {
            self.0.push(secret.to_owned());
            // Replace longer values first: if a shorter value is part of a longer one, the rest would stay readable.
            self.0.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        }
    }

    pub(crate) fn redact(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Secrets({})", self.0.len())
    }
}
